//! A non-blocking socket with what came and what is still to go.

use std::io::{self, ErrorKind, Read, Write};

use mio::net::TcpStream;

const READ_BYTES: usize = 16 * 1024;

/// A connection; readiness is edge-triggered, so each call goes on until the socket has had enough.
#[derive(Debug)]
pub struct Connection {
    /// The socket, registered for both directions.
    pub socket: TcpStream,
    /// What came and has not been taken yet.
    pub input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
}

impl Connection {
    /// Over a socket, which sends small messages at once from now on.
    ///
    /// # Errors
    /// The socket is of no use any more.
    pub fn new(socket: TcpStream) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        Ok(Self {
            socket,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
        })
    }

    /// Take what has come; false when the other side has closed.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn fill(&mut self) -> io::Result<bool> {
        loop {
            let held = self.input.len();
            self.input.resize(held + READ_BYTES, 0);
            let read = self.socket.read(&mut self.input[held..]);
            self.input.truncate(held + read.as_ref().map_or(0, |count| *count));
            match read {
                Ok(0) => return Ok(false),
                Ok(count) if count < READ_BYTES => return Ok(true),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Append to what is to go; `flush` sends it.
    pub fn put(&mut self, data: &[u8]) {
        self.output.extend_from_slice(data);
    }

    /// Send as much as the socket takes; whether that was all.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn flush(&mut self) -> io::Result<bool> {
        while self.sent < self.output.len() {
            match self.socket.write(&self.output[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(true)
    }

    /// Whether all has gone.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.sent == self.output.len()
    }
}
