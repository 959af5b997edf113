//! Tests of the lock recipes without the cache: their guarantees and their known failures.
#![cfg(all(feature = "bincode", feature = "lock", feature = "testing"))]
#![allow(clippy::disallowed_methods, reason = "tests make their own time and randomness")]

mod answers;
mod crash;
mod faults;
mod guarantees;
mod kit;
#[allow(unreachable_pub, reason = "public in the lab")]
#[path = "../../tools/lock-table/src/guarantees/promised.rs"]
mod promised;
mod replies;
mod site;
mod storm;
mod suite;
mod table;
mod traffic;

use promised::Guarantees;
use site::Subject;
use stampede_guard::lock::{FencedLock, SetPx};
use stampede_guard_support as support;

/// The marks of its table in src/guide/locks.md.
const TABLE: &str = "guarantees";

// Per recipe: its label in src/guide/locks.md, its number of servers, its guarantees, and how a lock is built with it.
lock_suite! {
    set_px: "SetPx", 1, Guarantees::ALL, |lock, _| lock.recipe(SetPx);
    fenced_lock: "FencedLock", 1, Guarantees::ALL, |lock, _| lock.recipe(FencedLock);
}
