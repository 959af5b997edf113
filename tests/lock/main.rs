//! Locks by themselves: the ways to lock, what they promise, and how they fail.
#![allow(clippy::disallowed_methods, reason = "tests make their own time and randomness")]

#[path = "../support/mod.rs"]
mod support;

mod handle;
mod storm;
