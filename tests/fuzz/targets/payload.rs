//! Typed values as a store returns them: wrong length prefixes, unknown enum variants, text that is not UTF-8.

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use stampede_guard::{Codec, fuzzing};
use std::{collections::BTreeMap, fmt::Debug};

/// The input: the first byte chooses codec and type.
pub(super) fn holds(input: &[u8]) {
    let Some((choice, payload)) = input.split_first() else { return };
    let codec = [Codec::Bincode, Codec::Postcard, Codec::Json][usize::from(choice % 3)];
    let decodes = match choice / 3 % 8 {
        0 => survives::<Vec<u8>>,
        1 => survives::<String>,
        2 => survives::<Vec<Vec<Vec<u64>>>>,
        3 => survives::<Vec<[u128; 16]>>,
        4 => survives::<BTreeMap<String, Vec<Option<char>>>>,
        5 => survives::<Vec<Shape>>,
        6 => survives::<(bool, i8, u16, i32, u64, i128, Box<str>)>,
        _ => survives::<Page>,
    };
    decodes(codec, payload);
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Shape {
    Point,
    Circle(u32),
    Path { name: Option<String>, of: Vec<(i16, i16)> },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Page {
    title: String,
    shapes: Vec<Shape>,
    tags: BTreeMap<u8, Vec<String>>,
    next: Option<Box<(u64, Vec<Self>)>>,
}

fn survives<T: Serialize + DeserializeOwned + PartialEq + Debug>(codec: Codec, payload: &[u8]) {
    let Some(value) = fuzzing::decode::<T>(codec, payload) else { return };
    let encoded = fuzzing::encode(codec, &value).expect("what decodes encodes");
    assert_eq!(fuzzing::decode::<T>(codec, &encoded).as_ref(), Some(&value));
    if codec == Codec::Json {
        return; // 12 is a prefix of 123
    }
    for cut in [0, encoded.len() / 2, encoded.len().saturating_sub(1)] {
        let whole = cut == encoded.len();
        assert_eq!(fuzzing::decode::<T>(codec, &encoded[..cut]).is_some(), whole, "{cut} of {}", encoded.len());
    }
    let longer = [&encoded[..], b"\0"].concat();
    assert!(fuzzing::decode::<T>(codec, &longer).is_none(), "trailing bytes are overlooked");
}
