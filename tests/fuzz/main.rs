//! Runs the targets of cargo-fuzz without cargo-fuzz: every file of the corpus, and 4,000 inputs derived from it.
//!
//! `PROPTEST_CASES` sets a higher number of inputs, and `PROPTEST_RNG_SEED` repeats a run.
#![cfg(all(feature = "_fuzz", feature = "json", feature = "postcard"))]
#![allow(clippy::disallowed_methods, reason = "tests make their own randomness")]

mod generate;
mod targets;

use proptest::test_runner::{Config, RngSeed, TestRunner};
use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::Path,
};

/// Defines a test for each target, with the memory it may allocate in addition to a multiple of its input.
macro_rules! targets {
    ($($target:ident: $allowance:expr;)*) => {$(
        #[test]
        fn $target() {
            fuzz(stringify!($target), $allowance);
        }
    )*};
}

targets! {
    ages: MIB;
    directives: MIB;
    envelope: MIB;
    head: MIB;
    keys: MIB;
    // A length prefix may claim a mebibyte, and serde reserves that much at each level of a nested list.
    payload: 4 * MIB;
    ranges: MIB;
    vary: MIB;
}

/// Inputs derived from entries of an older format would end within the head, and show nothing.
#[test]
fn corpus_of_the_envelope_has_whole_heads() {
    for (name, input) in corpus("envelope").into_iter().filter(|(name, _)| name.starts_with("value")) {
        assert!(input.len() > targets::envelope::HEAD, "{name} has {} bytes", input.len());
    }
}

/// Inputs derived from heads of an older format would not decode, and show nothing.
#[test]
fn corpus_of_stored_heads_decodes() {
    let stored: Vec<_> = corpus("head").into_iter().filter(|(name, _)| name.starts_with("stored")).collect();
    for (name, input) in &stored {
        assert!(stampede_guard::fuzzing::decode_head(&input.clone().into()).is_some(), "{name}");
    }
    assert!(stored.len() > 4);
}

fn fuzz(target: &str, allowance: usize) {
    let corpus = corpus(target);
    for (name, input) in &corpus {
        println!("{target}/{name}");
        bounded(target, input, allowance);
    }
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(fastrand::u64(..));
    }
    config.cases = config.cases.max(CASES);
    println!("{} inputs from seed {:?}", config.cases, config.rng_seed);
    let inputs = generate::inputs(corpus.into_iter().map(|(_, input)| input).collect());
    let found = TestRunner::new(config).run(&inputs, |input| {
        bounded(target, &input, allowance);
        Ok(())
    });
    if let Err(error) = found {
        panic!("{target}: {error}");
    }
}

/// Runs the target, and limits its memory in proportion to its input.
fn bounded(target: &str, input: &[u8], allowance: usize) {
    let mut done = Ok(());
    // Caught inside the measurement, because the counter does not survive a panic.
    let counted = allocation_counter::measure(|| {
        done = catch_unwind(AssertUnwindSafe(|| targets::run(target, input)));
    });
    if let Err(panic) = done {
        resume_unwind(panic);
    }
    let most = allowance + PER_BYTE * input.len();
    assert!(counted.bytes_max <= most as u64, "{} bytes were held for an input of {}", counted.bytes_max, input.len());
}

/// Returns the corpus files of the target, sorted by name.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let files = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let read = |file: fs::DirEntry| {
        let name = file.file_name().into_string().expect("a name in UTF-8");
        (name, fs::read(file.path()).expect("it is a file"))
    };
    let mut corpus: Vec<_> = files.map(|file| read(file.expect("the directory can be read"))).collect();
    corpus.sort();
    assert!(!corpus.is_empty(), "{} is empty", directory.display());
    corpus
}

const CASES: u32 = 4_000;
const MIB: usize = 1 << 20;
const PER_BYTE: usize = 512;
