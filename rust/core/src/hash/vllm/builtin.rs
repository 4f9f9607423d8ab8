//! Python's `hash()` of tuples, integers, strings, bytes and None, as CPython 3.11 and later compute it.
//!
//! Integers hash to themselves modulo 2^61-1 and tuples by a fixed mix (`Objects/tupleobject.c`, after xxHash), so both
//! are the same everywhere. Strings hash by SipHash-1-3 under a secret that `PYTHONHASHSEED` gives (`Python/pyhash.c`,
//! `Python/bootstrap_hash.c`). None hashes to its address before Python 3.12 and to a constant since.

use smallvec::SmallVec;

use super::Encoder;
use crate::tokens::TokenSlice;

const MODULUS: u64 = (1 << 61) - 1;
/// Of Python 3.12 and later.
const NONE: u64 = 0xfca8_6420;

const PRIME_1: u64 = 11_400_714_785_074_694_791;
const PRIME_2: u64 = 14_029_467_366_897_019_727;
const PRIME_5: u64 = 2_870_177_450_012_600_261;

/// What hashes of one process depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PythonSeed {
    secret: [u64; 2],
    none: u64,
}

impl PythonSeed {
    /// Of a process with this `PYTHONHASHSEED`; None unless it is a number as Python reads it.
    pub fn new(seed: &str, none: Option<i64>) -> Option<Self> {
        let mut state: u32 = seed.parse().ok()?;
        let mut bytes = [0; 16];
        if state != 0 {
            for byte in &mut bytes {
                state = state.wrapping_mul(214_013).wrapping_add(2_531_011);
                *byte = (state >> 16) as u8;
            }
        }
        let (first, second) = bytes.split_first_chunk().expect("16 bytes");
        let second = second.try_into().expect("the other eight");
        Some(Self {
            secret: [u64::from_le_bytes(*first), u64::from_le_bytes(second)],
            none: none.map_or(NONE, i64::cast_unsigned),
        })
    }
}

/// The hash of one value.
pub(super) struct PythonHash<'a> {
    seed: &'a PythonSeed,
    /// Of the tuples that are open.
    open: SmallVec<[u64; 4]>,
    last: u64,
}

impl<'a> PythonHash<'a> {
    pub fn new(seed: &'a PythonSeed) -> Self {
        Self {
            seed,
            open: SmallVec::new(),
            last: 0,
        }
    }

    /// The hash of the value that was written.
    pub fn finish(&self) -> u64 {
        self.last
    }

    fn value(&mut self, hash: u64) {
        match self.open.last_mut() {
            Some(tuple) => *tuple = mixed(*tuple, hash),
            None => self.last = hash,
        }
    }

    /// Of the memory that holds a string or bytes.
    fn memory(&mut self, bytes: &[u8]) {
        let hash = match siphash13(self.seed.secret, bytes) {
            _ if bytes.is_empty() => 0,
            u64::MAX => u64::MAX - 1,
            hash => hash,
        };
        self.value(hash);
    }
}

fn mixed(tuple: u64, hash: u64) -> u64 {
    let sum = tuple.wrapping_add(hash.wrapping_mul(PRIME_2));
    sum.rotate_left(31).wrapping_mul(PRIME_1)
}

/// What is added to a tuple's hash at its end.
fn ending(length: usize) -> u64 {
    length as u64 ^ (PRIME_5 ^ 0x35_d373)
}

/// The `hash(None)` of a process in which the block of these tokens below `parent` hashes to `block`, if the block has
/// no extra keys: the last step of a tuple's hash, taken back.
pub fn none_hash(parent: i64, tokens: TokenSlice<'_>, block: i64) -> i64 {
    let seed = PythonSeed::default();
    let mut hash = PythonHash::new(&seed);
    hash.open(3);
    hash.int(parent);
    hash.ids(tokens);
    let before = hash.open.pop().expect("opened above");
    let after = block.cast_unsigned().wrapping_sub(ending(3));
    let sum = after.wrapping_mul(inverse(PRIME_1)).rotate_right(31);
    sum.wrapping_sub(before).wrapping_mul(inverse(PRIME_2)).cast_signed()
}

/// Of an odd number, modulo 2^64. Each step of Newton's doubles the bits that are right, of which there are three.
const fn inverse(odd: u64) -> u64 {
    let mut found = odd;
    let mut step = 0;
    while step < 5 {
        found = found.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(found)));
        step += 1;
    }
    found
}

impl Encoder for PythonHash<'_> {
    fn open(&mut self, _length: usize) {
        self.open.push(PRIME_5);
    }

    fn close(&mut self, length: usize) {
        let tuple = self.open.pop().expect("opened before");
        let hash = match tuple.wrapping_add(ending(length)) {
            u64::MAX => 1_546_275_796,
            hash => hash,
        };
        self.value(hash);
    }

    fn ids(&mut self, ids: TokenSlice<'_>) {
        self.open(ids.len());
        for id in ids.iter() {
            self.value(id % MODULUS);
        }
        self.close(ids.len());
    }

    fn digest(&mut self, digest: &[u8]) {
        self.int(i64::from_be_bytes(digest.try_into().expect("a hash has eight bytes")));
    }

    fn none(&mut self) {
        self.value(self.seed.none);
    }

    fn int(&mut self, value: i64) {
        let hash = (value.unsigned_abs() % MODULUS) as i64;
        let hash = match if value < 0 { -hash } else { hash } {
            // -1 says in CPython that an object has no hash.
            -1 => -2,
            hash => hash,
        };
        self.value(hash.cast_unsigned());
    }

    fn bytes(&mut self, value: &[u8]) {
        self.memory(value);
    }

    fn text(&mut self, value: &str) {
        // CPython holds a string in the narrowest of three widths that all its characters fit.
        let widest = value.chars().max().unwrap_or_default();
        let memory: Vec<u8> = match widest {
            '\0'..='\u{7f}' => return self.memory(value.as_bytes()),
            '\u{80}'..='\u{ff}' => value.chars().map(|char| char as u8).collect(),
            '\u{100}'..='\u{ffff}' => value.encode_utf16().flat_map(u16::to_le_bytes).collect(),
            _ => value.chars().flat_map(|char| u32::from(char).to_le_bytes()).collect(),
        };
        self.memory(&memory);
    }

    fn literal(&mut self, value: &'static str) {
        self.text(value);
    }
}

/// SipHash with one round for each word and three at the end (Aumasson, Bernstein).
fn siphash13([key_0, key_1]: [u64; 2], bytes: &[u8]) -> u64 {
    let mut state = [
        key_0 ^ 0x736f_6d65_7073_6575,
        key_1 ^ 0x646f_7261_6e64_6f6d,
        key_0 ^ 0x6c79_6765_6e65_7261,
        key_1 ^ 0x7465_6462_7974_6573,
    ];
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    last[7] = bytes.len() as u8;
    for &word in words.iter().chain([&last]) {
        let word = u64::from_le_bytes(word);
        state[3] ^= word;
        round(&mut state);
        state[0] ^= word;
    }
    state[2] ^= 0xff;
    for _ in 0..3 {
        round(&mut state);
    }
    state.iter().fold(0, |hash, word| hash ^ word)
}

fn round([a, b, c, d]: &mut [u64; 4]) {
    *a = a.wrapping_add(*b);
    *c = c.wrapping_add(*d);
    *b = b.rotate_left(13) ^ *a;
    *d = d.rotate_left(16) ^ *c;
    *a = a.rotate_left(32);
    *c = c.wrapping_add(*b);
    *a = a.wrapping_add(*d);
    *b = b.rotate_left(17) ^ *c;
    *d = d.rotate_left(21) ^ *a;
    *c = c.rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(seed: &str, write: impl FnOnce(&mut PythonHash<'_>)) -> i64 {
        let seed = PythonSeed::new(seed, None).expect("a number");
        let mut hash = PythonHash::new(&seed);
        write(&mut hash);
        hash.finish().cast_signed()
    }

    fn of_text(seed: &str, text: &str) -> i64 {
        hash(seed, |out| out.text(text))
    }

    /// Expected values are those of `PYTHONHASHSEED=0` and `=42` in CPython 3.12.
    #[test]
    fn values_hash_as_in_python() {
        assert_eq!(hash("0", |out| out.int(-1)), -2);
        assert_eq!(hash("0", |out| out.int(i64::MIN)), -4);
        for seed in ["0", "42"] {
            assert_eq!(of_text(seed, ""), 0);
            assert_eq!(
                hash(seed, |out| out.ids(TokenSlice::U32(&[]))),
                5_740_354_900_026_072_187
            );
            assert_eq!(
                hash(seed, |out| out.ids(TokenSlice::U64(&[1, 2]))),
                -3_550_055_125_485_641_917
            );
        }
        let texts = ["a", "salt-x", "\u{e9}", "\u{100}x", "\u{10000}"];
        let expected = [
            4_644_417_185_603_328_019,
            -5_554_946_138_860_450_310,
            6_047_309_291_227_476_195,
            4_810_634_372_846_155_561,
            8_244_560_961_346_649_228,
        ];
        assert_eq!(texts.map(|text| of_text("0", text)), expected);
        let expected = [
            -123_207_753_977_932_514,
            3_846_550_611_527_434_453,
            5_653_850_369_683_463_245,
            8_459_073_714_500_739_852,
            -8_941_308_103_258_486_376,
        ];
        assert_eq!(texts.map(|text| of_text("42", text)), expected);
        assert_eq!(hash("42", |out| out.bytes(b"abcdefghi")), -5_970_266_004_662_334_337);
    }

    #[test]
    fn tuples_nest() {
        let nested = hash("42", |out| {
            out.open(4);
            out.int(-5);
            out.ids(TokenSlice::U64(&[u64::MAX]));
            out.open(2);
            out.literal("lora");
            out.text("x");
            out.close(2);
            out.none();
            out.close(4);
        });
        assert_eq!(nested, -3_576_558_744_537_647_322);
    }

    #[test]
    fn one_block_tells_the_hash_of_none() {
        for none in [1, -7, 0x7f1d_d9c5_bbe0] {
            let seed = PythonSeed::new("0", Some(none)).expect("a number");
            let mut hash = PythonHash::new(&seed);
            hash.open(3);
            hash.int(-40);
            hash.ids(TokenSlice::U32(&[3, 4]));
            hash.none();
            hash.close(3);
            let block = hash.finish().cast_signed();
            assert_eq!(none_hash(-40, TokenSlice::U32(&[3, 4]), block), none);
        }
    }

    #[test]
    fn a_seed_is_a_number_of_32_bits() {
        for (seed, is_seed) in [
            ("0", true),
            ("4294967295", true),
            ("4294967296", false),
            ("random", false),
        ] {
            assert_eq!(PythonSeed::new(seed, None).is_some(), is_seed);
        }
    }
}
