//! `workers KV_EVENTS...`: engines that answer what they are told to, one for each argument, all in one thread.
//!
//! An argument is what that engine says of its event sockets in `/server_info`. `max_tokens` is the number of chunks of
//! a stream and `seed` their pace in microseconds; 0 is as fast as they are taken. A chunk's text is `@` and the time it
//! was made, in nanoseconds. Prints one line of JSON with the `urls` when it listens.
#![allow(clippy::print_stdout)] // the line that says where

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::env;
use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kvevents_load::connection::Connection;
use kvevents_load::http::{Head, LAST_CHUNK, number};
use memchr::memmem;
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token};

const EVENTS: usize = 1024;
const FAST_CHUNKS: usize = 64; // written at a time by a stream without a pace, so that others have their turn

/// A reply that is on its way.
struct Stream {
    left: u64,
    pace: Duration,
    is_first: bool,
    is_chat: bool,
}

struct Client {
    connection: Connection,
    worker: usize,
    stream: Option<Stream>,
}

struct Worker {
    listener: TcpListener,
    kv_events: String,
    chunks: u64,
    requests: u64,
}

struct Fleet {
    poll: Poll,
    workers: Vec<Worker>,
    clients: HashMap<Token, Client>,
    due: BinaryHeap<Reverse<(Instant, Token)>>,
    next_token: usize,
    phase: u64,
}

impl Fleet {
    fn new(described: Vec<String>) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut workers = Vec::new();
        for (number, kv_events) in described.into_iter().enumerate() {
            let mut listener = TcpListener::bind(([127, 0, 0, 1], 0).into())?;
            poll.registry()
                .register(&mut listener, Token(number), Interest::READABLE)?;
            workers.push(Worker {
                listener,
                kv_events,
                chunks: 0,
                requests: 0,
            });
        }
        let next_token = workers.len();
        Ok(Self {
            poll,
            workers,
            clients: HashMap::new(),
            due: BinaryHeap::new(),
            next_token,
            phase: 0,
        })
    }

    fn urls(&self) -> io::Result<Vec<String>> {
        let url = |worker: &Worker| Ok(format!("\"http://{}\"", worker.listener.local_addr()?));
        self.workers.iter().map(url).collect()
    }

    fn serve(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        loop {
            let now = Instant::now();
            let patience = self
                .due
                .peek()
                .map(|Reverse((due, _))| due.saturating_duration_since(now));
            match self.poll.poll(&mut events, patience) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            for event in &events {
                if event.token().0 < self.workers.len() {
                    self.accept(event.token().0)?;
                } else {
                    self.turn(event.token(), event.is_readable() || event.is_read_closed());
                }
            }
            self.tick();
        }
    }

    fn accept(&mut self, worker: usize) -> io::Result<()> {
        while let Ok((mut socket, _)) = self.workers[worker].listener.accept() {
            let token = Token(self.next_token);
            self.next_token += 1;
            self.poll
                .registry()
                .register(&mut socket, token, Interest::READABLE | Interest::WRITABLE)?;
            if let Ok(connection) = Connection::new(socket) {
                self.clients.insert(
                    token,
                    Client {
                        connection,
                        worker,
                        stream: None,
                    },
                );
            }
        }
        Ok(())
    }

    /// A client's socket has something, or takes something; whoever has left is forgotten.
    fn turn(&mut self, token: Token, is_readable: bool) {
        let Some(client) = self.clients.get_mut(&token) else {
            return;
        };
        let is_there = !is_readable || client.connection.fill().unwrap_or(false);
        if !is_there || self.go_on(token).is_err() {
            self.clients.remove(&token);
        }
    }

    /// Answer what has come, and go on with a stream that waited for room.
    fn go_on(&mut self, token: Token) -> io::Result<()> {
        let Some(client) = self.clients.get_mut(&token) else {
            return Ok(());
        };
        while client.stream.is_none() && answer(client, &mut self.workers) {
            if let Some(stream) = &client.stream {
                let due = Instant::now();
                if stream.pace.is_zero() {
                    break;
                }
                self.due.push(Reverse((due, token)));
            }
        }
        let is_flushed = client.connection.flush()?;
        let is_fast = client.stream.as_ref().is_some_and(|stream| stream.pace.is_zero());
        if is_flushed && is_fast {
            self.due.push(Reverse((Instant::now(), token)));
        }
        Ok(())
    }

    /// Send the chunks whose time has come.
    fn tick(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((due, token))) = self.due.peek().copied() {
            if due > now {
                break;
            }
            self.due.pop();
            if self.send_chunks(token, due).is_err() {
                self.clients.remove(&token);
            }
        }
    }

    fn send_chunks(&mut self, token: Token, due: Instant) -> io::Result<()> {
        let Some(client) = self.clients.get_mut(&token) else {
            return Ok(());
        };
        let Some(stream) = &mut client.stream else {
            return Ok(());
        };
        let pace = stream.pace;
        if !client.connection.is_flushed() {
            if !pace.is_zero() {
                self.due.push(Reverse((due + pace, token))); // nobody reads: this one is left out
            }
            return Ok(());
        }
        let count = if pace.is_zero() { FAST_CHUNKS } else { 1 };
        for _ in 0..count.min(usize::try_from(stream.left).unwrap_or(count)) {
            stream.left -= 1;
            put_chunk(&mut client.connection, client.worker, stream);
            self.workers[client.worker].chunks += 1;
        }
        let mut next = due + pace;
        if stream.is_first && !pace.is_zero() {
            stream.is_first = false; // streams that began together do not stay in step
            self.phase = self
                .phase
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            next = due + pace.mul_f64((self.phase >> 40) as f64 / f64::from(1 << 24));
        }
        if stream.left == 0 {
            client.stream = None;
            return self.go_on(token); // the next request may be here already
        }
        let is_flushed = client.connection.flush()?;
        if is_flushed || !pace.is_zero() {
            self.due.push(Reverse((next, token)));
        }
        Ok(())
    }
}

/// Answer the request at the front of the input; whether there was one.
fn answer(client: &mut Client, workers: &mut [Worker]) -> bool {
    let input = &client.connection.input;
    let Some(head) = Head::read(input) else { return false };
    let Some(length) = head.message_length(input) else {
        return false;
    };
    let mut words = head.line.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let body = &input[head.length..length];
    let worker = client.worker;
    let is_chat = path == "/v1/chat/completions";
    let reply = match (method, path) {
        ("POST", "/v1/completions" | "/v1/chat/completions") => {
            workers[worker].requests += 1;
            if is_streamed(body) {
                let left = number(body, "max_tokens").unwrap_or(1).max(1);
                let pace = Duration::from_micros(number(body, "seed").unwrap_or(0));
                client.stream = Some(Stream {
                    left,
                    pace,
                    is_first: true,
                    is_chat,
                });
                "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
                    .to_owned()
            } else {
                json(200, &completion(worker, is_chat))
            }
        }
        ("GET", "/health" | "/health_generate") => json(200, "{}"),
        ("GET", "/v1/models") => json(200, MODELS),
        ("GET", "/server_info" | "/get_server_info") => json(200, &server_info(&workers[worker].kv_events)),
        ("GET", "/model_info" | "/get_model_info") => json(200, MODEL_INFO),
        ("GET", "/version") => json(200, "{\"version\":\"0.11.0\"}"),
        ("GET", "/counters") => {
            let Worker { chunks, requests, .. } = workers[worker];
            json(200, &format!("{{\"chunks\":{chunks},\"requests\":{requests}}}"))
        }
        _ => json(404, "{\"error\":{\"message\":\"not found\",\"code\":404}}"),
    };
    client.connection.put(reply.as_bytes());
    client.connection.input.drain(..length);
    true
}

const MODELS: &str = "{\"object\":\"list\",\"data\":[{\"id\":\"model\",\"object\":\"model\",\"created\":1700000000,\
    \"owned_by\":\"vllm\",\"root\":\"model\",\"parent\":null,\"max_model_len\":32768}]}";
const MODEL_INFO: &str = "{\"model_path\":\"model\",\"tokenizer_path\":\"model\",\"served_model_name\":\"model\",\
    \"is_generation\":true,\"preferred_sampling_params\":null}";

fn server_info(kv_events: &str) -> String {
    format!(
        "{{\"model_path\":\"model\",\"tokenizer_path\":\"model\",\"served_model_name\":\"model\",\"tp_size\":1,\
         \"dp_size\":1,\"version\":\"0.5\",\"max_total_num_tokens\":1000000,\"internal_states\":[{{}}],\
         \"kv_events\":{kv_events}}}"
    )
}

fn json(status: u16, body: &str) -> String {
    let reason = if status == 200 { "OK" } else { "Not Found" };
    let length = body.len();
    format!("HTTP/1.1 {status} {reason}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")
}

fn is_streamed(body: &[u8]) -> bool {
    let Some(start) = memmem::rfind(body, b"\"stream\":") else {
        return false;
    };
    body[start + 9..].trim_ascii_start().starts_with(b"true")
}

fn completion(worker: usize, is_chat: bool) -> String {
    let (id, object, choice) = if is_chat {
        (
            "chatcmpl",
            "chat.completion",
            "\"message\":{\"role\":\"assistant\",\"content\":\" x\"}",
        )
    } else {
        ("cmpl", "text_completion", "\"text\":\" x\"")
    };
    format!(
        "{{\"id\":\"{id}-{worker}\",\"object\":\"{object}\",\"created\":1700000000,\"model\":\"model\",\"choices\":\
         [{{\"index\":0,{choice},\"logprobs\":null,\"finish_reason\":\"length\"}}],\
         \"usage\":{{\"prompt_tokens\":1,\"completion_tokens\":1,\"total_tokens\":2}}}}"
    )
}

fn put_chunk(connection: &mut Connection, worker: usize, stream: &Stream) {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos();
    let (id, object) = if stream.is_chat {
        ("chatcmpl", "chat.completion.chunk")
    } else {
        ("cmpl", "text_completion")
    };
    let choice = if stream.is_chat {
        format!("\"delta\":{{\"content\":\"@{now}\"}}")
    } else {
        format!("\"text\":\"@{now}\"")
    };
    let finish = if stream.left == 0 { "\"length\"" } else { "null" };
    let data = format!(
        "data: {{\"id\":\"{id}-{worker}\",\"object\":\"{object}\",\"created\":1700000000,\"model\":\"model\",\
         \"choices\":[{{\"index\":0,{choice},\"logprobs\":null,\"finish_reason\":{finish}}}]}}\n\n"
    );
    connection.put(format!("{:x}\r\n{data}\r\n", data.len()).as_bytes());
    if stream.left == 0 {
        connection.put(b"e\r\ndata: [DONE]\n\n\r\n");
        connection.put(LAST_CHUNK);
    }
}

fn main() -> io::Result<()> {
    let mut fleet = Fleet::new(env::args().skip(1).collect())?;
    println!("{{\"urls\":[{}]}}", fleet.urls()?.join(","));
    fleet.serve()
}
