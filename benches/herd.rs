//! Filled next.
fn main() {}
