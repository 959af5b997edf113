//! Inputs derived from the corpus: cut, spliced, with bytes changed.

use proptest::{collection::vec, prelude::*, sample::Index};

/// One input in eight is random.
pub(crate) fn inputs(corpus: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let known = proptest::sample::select(corpus);
    let mutated = (known.clone(), known, vec(edit(), 0..8)).prop_map(|(mut input, other, edits)| {
        edits.iter().for_each(|edit| edit.apply(&mut input, &other));
        input
    });
    prop_oneof![1 => vec(any::<u8>(), 0..256), 7 => mutated]
}

#[derive(Clone, Debug)]
enum Edit {
    Set(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Repeat(Index, usize),
    Splice(Index, Index),
    Cut(Index),
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = any::<Index>;
    // Bytes that are significant to parsers, and numbers at the limits.
    let telling = proptest::sample::select(&b"\0\x01\x7f\x80\xfa\xfb\xfc\xfd\xfe\xff\n,=\"\\:/{} \t-0aZ"[..]);
    let telling = prop_oneof![telling, any::<u8>()];
    prop_oneof![
        4 => (at(), telling.clone()).prop_map(|(at, byte)| Edit::Set(at, byte)),
        2 => (at(), vec(telling, 1..8)).prop_map(|(at, bytes)| Edit::Insert(at, bytes)),
        1 => (at(), 1_usize..16).prop_map(|(at, length)| Edit::Remove(at, length)),
        1 => (at(), 1_usize..300).prop_map(|(at, times)| Edit::Repeat(at, times)),
        2 => (at(), at()).prop_map(|(at, from)| Edit::Splice(at, from)),
        1 => at().prop_map(Edit::Cut),
    ]
}

impl Edit {
    fn apply(&self, input: &mut Vec<u8>, other: &[u8]) {
        let places = input.len() + 1;
        match self {
            Self::Set(at, byte) => {
                let at = at.index(places);
                if at == input.len() {
                    input.push(*byte);
                } else {
                    input[at] = *byte;
                }
            }
            Self::Insert(at, bytes) => {
                let at = at.index(places);
                input.splice(at..at, bytes.iter().copied());
            }
            Self::Remove(at, length) => {
                let at = at.index(places);
                input.drain(at..(at + length).min(places - 1));
            }
            Self::Repeat(at, times) => {
                let at = at.index(places);
                let Some(byte) = input.get(at).copied() else { return };
                input.splice(at..at, std::iter::repeat_n(byte, *times));
            }
            Self::Splice(at, from) => {
                input.truncate(at.index(places));
                input.extend_from_slice(&other[from.index(other.len() + 1)..]);
            }
            Self::Cut(at) => input.truncate(at.index(places)),
        }
    }
}
