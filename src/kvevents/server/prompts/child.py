"""The process that renders and tokenizes: `python -m kvevents.server.prompts.child TASK`."""

import os
import resource
import signal
import sys
from typing import BinaryIO

import msgspec

from kvevents.server.prompts.encoder import Encoder, RenderingError
from kvevents.server.prompts.process import LENGTH, Answer, Job, Loaded, Task


def main() -> None:
    task = msgspec.json.decode(sys.argv[1], type=Task)
    resource.setrlimit(resource.RLIMIT_AS, (task.max_memory_bytes, task.max_memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the router, which ends this process
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints cannot get between the answers
    try:
        encoder = Encoder(task)
    except Exception as error:
        _send(answers, msgspec.msgpack.encode(Loaded(error=f"{type(error).__name__}: {error}")))
        return
    _send(answers, msgspec.msgpack.encode(Loaded(note=encoder.note)))
    jobs = sys.stdin.buffer
    while len(head := jobs.read(LENGTH.size)) == LENGTH.size:
        job = msgspec.msgpack.decode(jobs.read(*LENGTH.unpack(head)), type=Job)
        # Should the router be gone, nobody else would end a template that does not.
        signal.setitimer(signal.ITIMER_REAL, 2 * task.timeout_s)
        answer = _answer(encoder, job)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _send(answers, msgspec.msgpack.encode(answer))


def _answer(encoder: Encoder, job: Job) -> Answer:
    try:
        if job.chat is not None:
            ids, media = encoder.chat(job.chat)
        else:
            ids, media = encoder.text(job.text or "", add_special_tokens=job.add_special_tokens), []
    except RenderingError as error:
        return Answer(reason=error.reason, error=str(error))
    except MemoryError:
        return Answer(reason="template", error="it needs more memory than prompts.max_memory_bytes")
    return Answer(ids.tobytes(), media)


def _send(answers: BinaryIO, message: bytes) -> None:
    answers.write(LENGTH.pack(len(message)) + message)
    answers.flush()


if __name__ == "__main__":
    main()
