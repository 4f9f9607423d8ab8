//! Over JSON without building it: every value is checked, and only its place is kept.

use std::ops::Range;

use super::error::{Fault, PromptError};

/// Arrays and objects that may be in each other.
pub const MAX_DEPTH: usize = 512;

/// A place in the body.
pub(super) type Span = Range<usize>;

/// Where in a body reading has come to.
pub(super) struct Scanner<'a> {
    pub(super) data: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self { data, at: 0 }
    }

    /// The next byte; 0, which no JSON has outside of strings, at the end.
    #[inline]
    pub(super) fn peek(&self) -> u8 {
        self.data.get(self.at).copied().unwrap_or(0)
    }

    #[inline]
    pub(super) fn space(&mut self) {
        while matches!(self.peek(), b' ' | b'\n' | b'\r' | b'\t') {
            self.at += 1;
        }
    }

    pub(super) fn expected(&self, what: &'static str) -> PromptError {
        self.fault(Fault::Syntax(what))
    }

    pub(super) fn fault(&self, fault: Fault) -> PromptError {
        PromptError {
            fault,
            offset: self.at.min(self.data.len()),
        }
    }

    /// Go through the members of the object that begins here; `member` gets the span of each key (without quotes) and
    /// stands at its value.
    pub(super) fn object(
        &mut self,
        mut member: impl FnMut(&mut Self, Span) -> Result<(), PromptError>,
    ) -> Result<(), PromptError> {
        self.sequence(b'}', "a comma or the end of an object", |scanner| {
            let key = scanner.key()?;
            member(scanner, key)
        })
    }

    /// Go through the elements of the array that begins here.
    pub(super) fn array(
        &mut self,
        element: impl FnMut(&mut Self) -> Result<(), PromptError>,
    ) -> Result<(), PromptError> {
        self.sequence(b']', "a comma or the end of an array", element)
    }

    fn sequence(
        &mut self,
        end: u8,
        expected: &'static str,
        mut one: impl FnMut(&mut Self) -> Result<(), PromptError>,
    ) -> Result<(), PromptError> {
        self.at += 1;
        self.space();
        if self.peek() == end {
            self.at += 1;
            return Ok(());
        }
        loop {
            one(self)?;
            self.space();
            match self.peek() {
                b',' => self.at += 1,
                byte if byte == end => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.expected(expected)),
            }
            self.space();
        }
    }

    /// A key and its colon, up to the value.
    fn key(&mut self) -> Result<Span, PromptError> {
        if self.peek() != b'"' {
            return Err(self.expected("a key in quotes"));
        }
        let key = self.string()?;
        self.space();
        if self.peek() != b':' {
            return Err(self.expected("a colon after the key"));
        }
        self.at += 1;
        self.space();
        Ok(key)
    }

    /// Go past the value that begins here, which is `depth` deep.
    pub(super) fn skip(&mut self, depth: usize) -> Result<Span, PromptError> {
        let start = self.at;
        let mut nesting = Nesting::new(depth);
        loop {
            match self.peek() {
                b'"' => {
                    self.string()?;
                }
                open @ (b'{' | b'[') => {
                    let is_object = open == b'{';
                    nesting.enter(is_object).map_err(|fault| self.fault(fault))?;
                    self.at += 1;
                    self.space();
                    if self.peek() != close(is_object) {
                        if is_object {
                            self.key()?;
                        }
                        continue;
                    }
                    nesting.leave();
                    self.at += 1;
                }
                _ => self.scalar()?,
            }
            // A value has ended, and with it perhaps those that it is in.
            loop {
                let Some(is_object) = nesting.innermost() else {
                    return Ok(start..self.at);
                };
                self.space();
                match self.peek() {
                    b',' => {
                        self.at += 1;
                        self.space();
                        if is_object {
                            self.key()?;
                        }
                        break;
                    }
                    byte if byte == close(is_object) => {
                        nesting.leave();
                        self.at += 1;
                    }
                    _ if is_object => return Err(self.expected("a comma or the end of an object")),
                    _ => return Err(self.expected("a comma or the end of an array")),
                }
            }
        }
    }

    fn scalar(&mut self) -> Result<(), PromptError> {
        for word in ["true", "false", "null", "NaN", "Infinity", "-Infinity"] {
            if self.data[self.at..].starts_with(word.as_bytes()) {
                self.at += word.len();
                return Ok(());
            }
        }
        self.number()
    }

    fn number(&mut self) -> Result<(), PromptError> {
        if self.peek() == b'-' {
            self.at += 1;
        }
        match self.peek() {
            b'0' => self.at += 1,
            b'1'..=b'9' => self.digits()?,
            _ => return Err(self.expected("a value")),
        }
        if self.peek() == b'.' {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), b'e' | b'E') {
            self.at += 1;
            if matches!(self.peek(), b'+' | b'-') {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), PromptError> {
        let start = self.at;
        while self.peek().is_ascii_digit() {
            self.at += 1;
        }
        if self.at == start {
            return Err(self.expected("a digit"));
        }
        Ok(())
    }

    /// Go past the string that begins here; the span is without the quotes.
    pub(super) fn string(&mut self) -> Result<Span, PromptError> {
        self.at += 1;
        let start = self.at;
        loop {
            self.at += plain_run(&self.data[self.at..]);
            match self.peek() {
                b'"' => {
                    self.at += 1;
                    return Ok(start..self.at - 1);
                }
                b'\\' => self.escape()?,
                _ if self.at >= self.data.len() => return Err(self.expected("the end of a string")),
                _ => return Err(self.expected("a control character to be escaped")),
            }
        }
    }

    fn escape(&mut self) -> Result<(), PromptError> {
        match self.data.get(self.at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
            Some(b'u') => {
                let digits = self.data.get(self.at + 2..self.at + 6);
                if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
                    return Err(self.expected("four hexadecimal digits after \\u"));
                }
                self.at += 6;
            }
            _ => return Err(self.expected("an escape that JSON has")),
        }
        Ok(())
    }
}

fn close(is_object: bool) -> u8 {
    if is_object { b'}' } else { b']' }
}

/// Looked at at once: a stretch without anything special is seen in vector instructions.
const STRETCH: usize = 32;

/// Bytes up to a quote, a backslash, a control character or the end.
fn plain_run(data: &[u8]) -> usize {
    let special = |byte: u8| byte == b'"' || byte == b'\\' || byte < 0x20;
    let plain = data
        .chunks_exact(STRETCH)
        .take_while(|stretch| !stretch.iter().fold(false, |seen, &byte| seen | special(byte)))
        .count()
        * STRETCH;
    let rest = &data[plain..];
    plain + rest.iter().position(|&byte| special(byte)).unwrap_or(rest.len())
}

/// The arrays and objects that a value is in: a bit each, 1 for an object.
struct Nesting {
    outer: usize,
    depth: usize,
    bits: [u64; MAX_DEPTH / 64],
}

impl Nesting {
    fn new(outer: usize) -> Self {
        Self {
            outer,
            depth: 0,
            bits: [0; MAX_DEPTH / 64],
        }
    }

    fn enter(&mut self, is_object: bool) -> Result<(), Fault> {
        if self.outer + self.depth >= MAX_DEPTH {
            return Err(Fault::Depth(MAX_DEPTH));
        }
        let (word, bit) = (self.depth / 64, self.depth % 64);
        self.bits[word] = self.bits[word] & !(1 << bit) | u64::from(is_object) << bit;
        self.depth += 1;
        Ok(())
    }

    fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Whether the innermost is an object.
    fn innermost(&self) -> Option<bool> {
        let last = self.depth.checked_sub(1)?;
        Some(self.bits[last / 64] >> (last % 64) & 1 == 1)
    }
}
