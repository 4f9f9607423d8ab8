//! Every way to hash blocks: whatever the tokens and names, the same however they are handed over.

use kvevents_core::hash::chain::HashChain;
use kvevents_core::hash::content::{self, Adapter};
use kvevents_core::hash::namespace::{Namespace, Scheme, Separation};
use kvevents_core::hash::sglang::{self, EventFormat};
use kvevents_core::hash::vllm::{self, ExtraKey, KeyForm};
use kvevents_core::pages::Paging;
use kvevents_core::tokens::{TokenSlice, TokenVec};

use super::Target;
use crate::dice::Dice;
use crate::mutation;

pub const TARGET: Target = Target {
    name: "hash",
    make: |dice| (0..64).flat_map(|_| dice.number().to_le_bytes()).collect(),
    mutate: mutation::bytes,
    check,
};

fn check(data: &[u8]) -> bool {
    let seed = data.iter().fold(0_u64, |seed, &byte| {
        seed.rotate_left(9) ^ u64::from(byte).wrapping_mul(0x0123_4567_89ab)
    });
    let mut dice = Dice::new(seed);
    let bigram = dice.once_in(3);
    let size = 1 + dice.below(5);
    let paging = Paging::new(size, bigram).expect("not 0");
    let wide = dice.once_in(2);
    let pages = dice.below(5);
    let ids: Vec<u64> = (0..pages * size + usize::from(bigram))
        .map(|_| {
            if wide {
                dice.odd_number()
            } else {
                u64::from(dice.odd_number() as u32)
            }
        })
        .collect();
    let (name, salt, path) = (text(&mut dice), text(&mut dice), text(&mut dice));
    let hash_seed = if dice.once_in(2) {
        Some(format!("{}", dice.below(99)))
    } else {
        text(&mut dice)
    };
    let by = Separation {
        extra_key: name.as_deref(),
        cache_salt: salt.as_deref(),
        adapter_path: path.as_deref(),
        adapter_number: dice.once_in(4).then(|| dice.odd_number() as i64),
        process: vllm::Process {
            hash_seed: hash_seed.as_deref(),
            key_form: dice.one(&KeyForm::NAMES).1,
            none_hash: dice.once_in(2).then(|| dice.odd_number() as i64),
        },
    };
    for (_, scheme) in Scheme::NAMES {
        if !(bigram && matches!(scheme, Scheme::Vllm(_))) {
            check_scheme(scheme, paging, by, &ids, &mut dice);
        }
    }
    check_content(&ids, size, bigram, by);
    pages > 0
}

fn text(dice: &mut Dice) -> Option<String> {
    let length = dice.below(40);
    let mut character = || char::from_u32(dice.odd_number() as u32 % 0x11_0000).unwrap_or('\0');
    match length {
        0..10 => None,
        _ => Some((10..length).map(|_| character()).collect()),
    }
}

/// The ids in the narrowest form, and in the widest.
fn forms(ids: &[u64]) -> [TokenVec; 2] {
    let mut narrow = TokenVec::default();
    for &id in ids {
        narrow.push(id);
    }
    [narrow, TokenVec::U64(ids.to_vec())]
}

fn check_scheme(scheme: Scheme, paging: Paging, by: Separation<'_>, ids: &[u64], dice: &mut Dice) {
    let Ok(namespace) = Namespace::new(scheme, paging, by) else {
        assert!(matches!(scheme, Scheme::Vllm(_)), "only vLLM's schemes need a seed");
        return;
    };
    let keys = [
        ExtraKey::Image {
            id: "\u{10ffff}",
            offset: Some(dice.odd_number() as i64),
        },
        ExtraKey::Embeddings(&[7; 32]),
    ];
    let page_keys = namespace.page_keys(&keys);
    assert_eq!(page_keys.is_some(), matches!(scheme, Scheme::Vllm(_)));
    let root = HashChain::root(namespace);
    let overlap = usize::from(paging.is_bigram());
    let pages = paging.count(ids.len());
    let [narrow, wide] = forms(ids).map(|form| root.extend(form.as_slice()).expect("whole pages"));
    assert_eq!(
        (narrow.len(), narrow.digests()),
        (pages, wide.digests()),
        "{}: widths agree",
        scheme.name()
    );
    let middle = dice.below(pages + 1) * paging.page_size();
    let first = TokenSlice::U64(&ids[..middle + if middle > 0 { overlap } else { 0 }]);
    let head = root.extend(first).expect("whole pages");
    let tail = head.extend(TokenSlice::U64(&ids[middle..])).expect("whole pages");
    let parts: Vec<_> = head.digests().iter().chain(tail.digests()).copied().collect();
    assert_eq!(parts, wide.digests(), "{}: a chain can be continued", scheme.name());
    let (left, right) = wide.split(head.len()).expect("as many pages");
    assert_eq!(
        (left.digests(), right.digests()),
        (head.digests(), tail.digests()),
        "{}",
        scheme.name()
    );
    assert_eq!(right.parent_id(), left.ids().last(), "{}", scheme.name());
    assert!(wide.split(pages + 1).is_none());
    let namespace = root.namespace();
    if let Some(keys) = page_keys {
        let with: Vec<_> = namespace.digests_with(None, TokenSlice::U64(ids), &[keys]).collect();
        assert!(
            pages == 0 || with[0] != wide.digests()[0],
            "{}: an image makes another block",
            scheme.name()
        );
    }
    for (format, digest) in EventFormat::NAMES.iter().zip(wide.digests()) {
        let id = scheme.id(digest);
        let wrapped = namespace.wrapper(format.1, dice.once_in(2)).wrap(id);
        assert!(scheme == Scheme::Sglang || wrapped == id);
        assert_eq!(
            scheme.digest_of(scheme.digest_bytes(digest)).as_ref(),
            Some(digest),
            "{}",
            scheme.name()
        );
    }
    if paging.left_over(ids.len() + 1) != 0 {
        assert!(
            root.extend(TokenSlice::U64(&[ids, &[0]].concat())).is_none(),
            "a part of a page is none"
        );
    }
}

fn check_content(ids: &[u64], size: usize, pairs: bool, by: Separation<'_>) {
    let adapter = Adapter::new(by.extra_key, by.adapter_number);
    let root = content::root(adapter, by.cache_salt);
    let [narrow, wide] = forms(ids).map(|form| content::chain(root, form.as_slice(), size, pairs));
    assert_eq!(narrow, wide, "content: widths agree");
    assert_eq!(wide.len(), ids.len().saturating_sub(usize::from(pairs)) / size);
    let mut last = root;
    for (index, &expected) in wide.iter().enumerate() {
        let block = content::window(TokenSlice::U64(ids), index, size, pairs).expect("a whole block");
        last = content::block(last, block, Some(&[]));
        assert_eq!(last, expected, "content: no extra keys are none");
    }
    let salted = sglang::salt_seed(by.cache_salt.unwrap_or_default());
    assert_eq!(salted, sglang::salt_seed(by.cache_salt.unwrap_or_default()));
}
