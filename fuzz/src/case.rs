//! Several payloads, and a number that settings are made of, as one input.

/// An input of a target that takes payloads one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// What settings and choices are made of.
    pub seed: u64,
    /// The payloads.
    pub payloads: Vec<Vec<u8>>,
}

impl Case {
    /// The case that `data` stands for: every input is one.
    pub fn read(data: &[u8]) -> Self {
        let (seed, mut rest) = data.split_at(data.len().min(8));
        let mut word = [0; 8];
        word[..seed.len()].copy_from_slice(seed);
        let mut payloads = Vec::new();
        while let Some((length, more)) = rest.split_first_chunk() {
            let (payload, more) = more.split_at(more.len().min(u16::from_le_bytes(*length).into()));
            payloads.push(payload.to_vec());
            rest = more;
        }
        Self {
            seed: u64::from_le_bytes(word),
            payloads,
        }
    }

    /// Its bytes. Payloads longer than 65,535 bytes are cut off there.
    pub fn write(&self) -> Vec<u8> {
        let mut data = self.seed.to_le_bytes().to_vec();
        for payload in &self.payloads {
            let payload = &payload[..payload.len().min(u16::MAX.into())];
            data.extend((payload.len() as u16).to_le_bytes());
            data.extend(payload);
        }
        data
    }
}
