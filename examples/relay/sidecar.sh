#!/usr/bin/env bash
# A relay beside one engine: `examples/relay/sidecar.sh http://127.0.0.1:30000 [PORT] [DIR]`.
# Consumers are pointed at http://127.0.0.1:PORT in place of the engine; its own sockets stay as they are.
set -euo pipefail

engine=$1
port=${2:-31000}                  # where consumers ask for /server_info
log=${3:-$HOME/.kvevents/relay}   # what a restarted relay goes on from

until curl -sf "$engine/server_info" >/dev/null; do  # the engine loads its model
    sleep 0.2
done
exec kvevents relay "$engine" \
    --http "127.0.0.1:$port" \
    --log "$log" \
    --window 20ms --coalesce chain
