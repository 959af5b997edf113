//! Tests of the lock recipes without the cache: their guarantees and their known failures.
#![allow(clippy::disallowed_methods, reason = "tests make their own time and randomness")]

mod answers;
mod crash;
mod faults;
mod guarantees;
mod kit;
mod replies;
mod site;
mod storm;
mod suite;
mod table;
mod traffic;

use site::Subject;
use stampede_guard::lock::{FencedLock, Redlock, SetPx};
use stampede_guard_support as support;
use support::SECOND;

/// The marks of its table in docs/locks.md.
const TABLE: &str = "guarantees";

// Per recipe: its label in docs/locks.md, its number of servers, and how a lock is built with it.
lock_suite! {
    set_px: "SetPx", 1, |lock, _| lock.recipe(SetPx);
    redlock: "Redlock", 5, |lock, site| lock.recipe(Redlock::with(site.servers[1..].to_vec()).server_timeout(5 * SECOND));
    fenced_lock: "FencedLock", 1, |lock, _| lock.recipe(FencedLock);
}
