//! `load PORT PATH BODIES CONNECTIONS RATE SECONDS REQUESTS`: ask, and say how long the answers took.
//!
//! BODIES is a file with a JSON body on each line; they are sent in turns, each with the first `77777` of it replaced by
//! a number that changes. RATE is requests a second whether they are answered or not, over as many connections as that
//! takes; 0 is a closed loop over CONNECTIONS. It ends after SECONDS or REQUESTS. Prints one line of JSON; times are in
//! microseconds.
#![allow(clippy::print_stdout)] // the result

use std::collections::HashMap;
use std::error::Error;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{env, fs, io};

use kvevents_load::connection::Connection;
use kvevents_load::http::{Body, Head, LAST_CHUNK};
use memchr::{memchr, memmem};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

const MARK: &[u8] = b"77777";
const PATIENCE: Duration = Duration::from_secs(20); // for the last answers

struct Request {
    bytes: Vec<u8>,
    mark: Option<usize>,
}

/// What is being waited for on a connection.
struct Waiting {
    since: Instant,
    head: Option<Head>,
    got: usize,
    tail: Vec<u8>,
}

struct Peer {
    connection: Connection,
    waiting: Option<Waiting>,
    text: Vec<u8>, // of a chunk's time that is not complete
}

#[derive(Default)]
struct Figures {
    answered: u64,
    broken: u64,
    refused: u64,
    first_refusal: Option<String>,
    latency: Vec<f64>,
    first_byte: Vec<f64>,
    transit: Vec<f64>,
    chunks: u64,
    reads: u64,
}

struct Load {
    poll: Poll,
    port: u16,
    requests: Vec<Request>,
    peers: HashMap<Token, Peer>,
    idle: Vec<Token>,
    next_token: usize,
    started: u64,
    number: u64,
    figures: Figures,
}

impl Load {
    fn connect(&mut self) -> io::Result<Token> {
        let standard = std::net::TcpStream::connect(("127.0.0.1", self.port))?;
        standard.set_nonblocking(true)?;
        let mut socket = TcpStream::from_std(standard);
        let token = Token(self.next_token);
        self.next_token += 1;
        self.poll
            .registry()
            .register(&mut socket, token, Interest::READABLE | Interest::WRITABLE)?;
        let peer = Peer {
            connection: Connection::new(socket)?,
            waiting: None,
            text: Vec::new(),
        };
        self.peers.insert(token, peer);
        Ok(token)
    }

    /// Send the next request over an idle connection, or over a new one.
    fn start(&mut self) -> io::Result<()> {
        let token = match self.idle.pop() {
            Some(token) => token,
            None => self.connect()?,
        };
        let turn = usize::try_from(self.started).unwrap_or(0) % self.requests.len();
        let request = &mut self.requests[turn];
        if let Some(mark) = request.mark {
            let digits = format!("{}", 10_000 + self.number % 90_000);
            request.bytes[mark..mark + MARK.len()].copy_from_slice(digits.as_bytes());
        }
        self.number += 1;
        self.started += 1;
        let Some(peer) = self.peers.get_mut(&token) else {
            return Ok(());
        };
        peer.waiting = Some(Waiting {
            since: Instant::now(),
            head: None,
            got: 0,
            tail: Vec::new(),
        });
        peer.connection.put(&request.bytes);
        if peer.connection.flush().is_err() {
            self.lose(token);
        }
        Ok(())
    }

    fn lose(&mut self, token: Token) {
        if let Some(peer) = self.peers.remove(&token) {
            self.figures.broken += u64::from(peer.waiting.is_some());
            self.idle.retain(|one| *one != token);
        }
    }

    /// Something happened on a connection; whether an answer is complete or lost.
    fn turn(&mut self, token: Token) -> bool {
        let Some(peer) = self.peers.get_mut(&token) else {
            return false;
        };
        let is_open = peer.connection.flush().is_ok() && peer.connection.fill().unwrap_or(false);
        let is_done = !peer.connection.input.is_empty() && take(peer, &mut self.figures);
        if is_done {
            peer.waiting = None;
        }
        let was_waiting = peer.waiting.is_some();
        if !is_open {
            self.lose(token);
            return is_done || was_waiting;
        }
        if is_done {
            self.idle.push(token);
        }
        is_done
    }

    fn run(&mut self, connections: u64, rate: f64, seconds: f64, limit: u64) -> io::Result<f64> {
        let mut events = Events::with_capacity(1024);
        for _ in 0..connections {
            let token = self.connect()?;
            self.idle.push(token);
        }
        let begin = Instant::now();
        let end = begin + Duration::from_secs_f64(seconds);
        let mut last = begin;
        if rate == 0.0 {
            for _ in 0..connections.min(limit) {
                self.start()?;
            }
        }
        loop {
            let now = Instant::now();
            let is_over = now >= end || self.started >= limit;
            let waiting = self.peers.values().filter(|peer| peer.waiting.is_some()).count();
            if is_over && (waiting == 0 || now >= end + PATIENCE) {
                self.figures.broken += waiting as u64;
                return Ok(last.duration_since(begin).as_secs_f64());
            }
            let mut patience = Duration::from_millis(100);
            if rate > 0.0 && !is_over {
                let due = begin + Duration::from_secs_f64(self.started as f64 / rate);
                if due <= now {
                    self.start()?;
                    continue;
                }
                patience = patience.min(due - now);
            }
            match self.poll.poll(&mut events, Some(patience)) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            for event in &events {
                if self.turn(event.token()) {
                    last = Instant::now();
                    if rate == 0.0 && last < end && self.started < limit {
                        self.start()?;
                    }
                }
            }
        }
    }
}

/// Take what has come of an answer; whether it is complete.
fn take(peer: &mut Peer, figures: &mut Figures) -> bool {
    let input = &mut peer.connection.input;
    let Some(waiting) = &mut peer.waiting else {
        input.clear();
        return false;
    };
    figures.reads += 1;
    if waiting.head.is_none() {
        let Some(head) = Head::read(input) else { return false };
        if !head.line.contains(" 200") {
            figures.refused += 1;
            figures.first_refusal.get_or_insert_with(|| head.line.clone());
        }
        input.drain(..head.length);
        waiting.head = Some(head);
    }
    if waiting.got == 0 && !input.is_empty() {
        figures.first_byte.push(microseconds(waiting.since));
    }
    waiting.got += input.len();
    take_times(&mut peer.text, input, figures);
    waiting
        .tail
        .extend_from_slice(&input[input.len().saturating_sub(LAST_CHUNK.len())..]);
    waiting
        .tail
        .drain(..waiting.tail.len().saturating_sub(LAST_CHUNK.len()));
    input.clear();
    let is_done = match waiting.head.as_ref().map(|head| head.body) {
        Some(Body::Length(length)) => waiting.got >= length,
        Some(Body::Chunked) => waiting.tail == LAST_CHUNK,
        None => false,
    };
    if is_done {
        figures.answered += 1;
        figures.latency.push(microseconds(waiting.since));
    }
    is_done
}

/// Count the chunks, and how long each was on its way.
fn take_times(text: &mut Vec<u8>, mut data: &[u8], figures: &mut Figures) {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos() as f64;
    loop {
        if text.is_empty() {
            let Some(place) = memchr(b'@', data) else { return };
            text.push(b'@');
            data = &data[place + 1..];
        }
        let digits = data.iter().take_while(|byte| byte.is_ascii_digit()).count();
        text.extend_from_slice(&data[..digits]);
        data = &data[digits..];
        if data.is_empty() {
            return;
        }
        let made: Option<f64> = std::str::from_utf8(&text[1..])
            .ok()
            .and_then(|digits| digits.parse().ok());
        if let Some(made) = made {
            figures.chunks += 1;
            figures.transit.push((now - made) / 1e3);
        }
        text.clear();
    }
}

fn microseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

fn percentile(values: &mut [f64], percent: f64) -> String {
    values.sort_by(f64::total_cmp);
    let place = (values.len() as f64 * percent / 100.0) as usize;
    values
        .get(place.min(values.len().saturating_sub(1)))
        .map_or("null".to_owned(), |value| format!("{value:.1}"))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [port, path, bodies, connections, rate, seconds, limit] = arguments.as_slice() else {
        return Err("usage: load PORT PATH BODIES CONNECTIONS RATE SECONDS REQUESTS".into());
    };
    let request = |body: &str| {
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nAccept: */*\r\n\
             Content-Length: {length}\r\n\r\n"
        );
        let mark = memmem::find(body.as_bytes(), MARK).map(|place| head.len() + place);
        Request {
            bytes: [head.as_bytes(), body.as_bytes()].concat(),
            mark,
        }
    };
    let mut load = Load {
        poll: Poll::new()?,
        port: port.parse()?,
        requests: fs::read_to_string(bodies)?.lines().map(request).collect(),
        peers: HashMap::new(),
        idle: Vec::new(),
        next_token: 0,
        started: 0,
        number: u64::from(SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_micros()),
        figures: Figures::default(),
    };
    if load.requests.is_empty() {
        return Err(format!("{bodies}: expected a body on each line, got none").into());
    }
    let took = load.run(connections.parse()?, rate.parse()?, seconds.parse()?, limit.parse()?)?;
    let Figures {
        answered,
        broken,
        refused,
        chunks,
        reads,
        ..
    } = load.figures;
    let figures = &mut load.figures;
    println!(
        "{{\"answered\":{answered},\"broken\":{broken},\"refused\":{refused},\"first_refusal\":{:?},\"seconds\":{took:.4},\
         \"chunks\":{chunks},\"reads\":{reads},\"p50_us\":{},\"p99_us\":{},\"first_byte_p50_us\":{},\
         \"first_byte_p99_us\":{},\"chunk_p50_us\":{},\"chunk_p99_us\":{}}}",
        figures.first_refusal.as_deref().unwrap_or_default(),
        percentile(&mut figures.latency, 50.0),
        percentile(&mut figures.latency, 99.0),
        percentile(&mut figures.first_byte, 50.0),
        percentile(&mut figures.first_byte, 99.0),
        percentile(&mut figures.transit, 50.0),
        percentile(&mut figures.transit, 99.0),
    );
    Ok(())
}
