//! Arrays of integers into token buffers: eight digits at a time.

use super::error::{Fault, PromptError};
use super::scanner::Scanner;
use crate::tokens::TokenVec;

/// The highest token id.
pub const MAX_ID: u64 = (1 << 63) - 1;

/// Bytes that an id takes in JSON, to know how much room to make.
const BYTES_PER_ID: usize = 6;

impl Scanner<'_> {
    /// The ids of the array that begins here, into `ids`, whose room is used again.
    pub(super) fn ids(&mut self, ids: &mut TokenVec) -> Result<(), PromptError> {
        ids.clear();
        self.at += 1;
        self.space();
        if self.peek() == b']' {
            self.at += 1;
            return Ok(());
        }
        if let TokenVec::U32(narrow) = ids
            && narrow.capacity() == 0
        {
            // At most as much memory as the body takes, and only once for all arrays under one key.
            narrow.reserve((self.data.len() - self.at) / BYTES_PER_ID + 1);
        }
        loop {
            if let TokenVec::U32(narrow) = ids
                && self.plain_ids(narrow)
            {
                return Ok(());
            }
            self.space();
            let id = self.id()?;
            ids.push(id);
            self.space();
            match self.peek() {
                b',' => self.at += 1,
                b']' => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.expected("a comma or the end of an array")),
            }
        }
    }

    /// Ids as they nearly always come: up to seven digits, then a comma, and perhaps a space. Whether the array's end
    /// was reached; if not, what comes next is for `id` to look at.
    fn plain_ids(&mut self, ids: &mut Vec<u32>) -> bool {
        let data = self.data;
        let mut at = self.at;
        let is_whole = loop {
            let Some(word) = data.get(at..at + 8) else { break false };
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            // Digits become 0 to 9; above the first other byte carries may spoil what is not looked at.
            let digits = word ^ 0x3030_3030_3030_3030;
            let others = (digits.wrapping_add(0x7676_7676_7676_7676) | digits) & 0x8080_8080_8080_8080;
            let bits = others.trailing_zeros() & !7;
            // None, or eight and perhaps more; a zero may not lead.
            if bits == 0 || bits == 64 || (digits as u8 == 0 && bits != 8) {
                break false;
            }
            let after = at + bits as usize / 8;
            match data.get(after) {
                Some(b',') => {
                    ids.push(eight_digits(digits << (64 - bits)));
                    at = after + 1 + usize::from(data.get(after + 1) == Some(&b' '));
                }
                Some(b']') => {
                    ids.push(eight_digits(digits << (64 - bits)));
                    at = after + 1;
                    break true;
                }
                _ => break false,
            }
        };
        self.at = at;
        is_whole
    }

    /// Any id.
    fn id(&mut self) -> Result<u64, PromptError> {
        let start = self.at;
        let fault = |what| PromptError {
            fault: Fault::Id(what),
            offset: start,
        };
        let span = self.skip(0)?;
        let word = &self.data[span];
        match word[0] {
            b'"' => return Err(fault("a string")),
            b'[' => return Err(fault("an array")),
            b'{' => return Err(fault("an object")),
            b'0'..=b'9' | b'-' => {}
            _ => return Err(fault("no number")),
        }
        if word == b"-0" {
            return Ok(0); // an integer in Python, and 0
        }
        if word[0] == b'-' {
            return Err(fault("a number below it"));
        }
        let mut id: u64 = 0;
        for &digit in word {
            if !digit.is_ascii_digit() {
                return Err(fault("a number with a fraction or an exponent"));
            }
            let next = id
                .checked_mul(10)
                .and_then(|id| id.checked_add(u64::from(digit - b'0')));
            id = next
                .filter(|&id| id <= MAX_ID)
                .ok_or_else(|| fault("a number above it"))?;
        }
        Ok(id)
    }
}

/// The number whose eight decimal digits are the bytes of a word, the first in the lowest.
fn eight_digits(digits: u64) -> u32 {
    const PAIRS: u64 = 0x0000_00ff_0000_00ff;
    let pairs = digits.wrapping_mul(10).wrapping_add(digits >> 8);
    let high = (pairs & PAIRS).wrapping_mul(100 + (1_000_000 << 32));
    let low = (pairs >> 16 & PAIRS).wrapping_mul(1 + (10_000 << 32));
    (high.wrapping_add(low) >> 32) as u32
}
