//! Locks by themselves: the ways to lock, what they promise, and how they fail.
#![allow(clippy::disallowed_methods, reason = "tests make their own time and randomness")]

#[path = "../support/mod.rs"]
mod support;

mod answers;
mod crash;
mod faults;
mod guarantees;
mod guard;
mod replies;
mod site;
mod storm;
mod suite;
mod table;
mod traffic;

use site::Subject;
use stampede_guard::lock::{
    Counter, ExistsSetex, Fused, GetSet, Redlock, Rename, SetMembership, SetPx, SetnxExpire, Watch,
};
use support::SECOND;

// What docs/locks.md calls it, on how many servers, and how it is set.
lock_suite! {
    set_membership: "SetMembership", 1, |lock, _| lock.recipe(SetMembership::default());
    set_membership_with_expiry: "SetMembership::with_expiry()", 1, |lock, _| lock.recipe(SetMembership::with_expiry());
    counter: "Counter", 1, |lock, _| lock.recipe(Counter);
    getset: "GetSet", 1, |lock, _| lock.recipe(GetSet::new());
    rename: "Rename", 1, |lock, _| lock.recipe(Rename);
    watch: "Watch", 1, |lock, site| lock.recipe(Watch::new(site.client()));
    set_px: "SetPx", 1, |lock, _| lock.recipe(SetPx);
    exists_setex: "ExistsSetex", 1, |lock, _| lock.recipe(ExistsSetex);
    setnx_expire: "SetnxExpire", 1, |lock, site| lock.recipe(SetnxExpire::new(site.client()));
    redlock: "Redlock", 5, |lock, site| lock.recipe(Redlock::with(site.others()).server_timeout(5 * SECOND));
    fused: "Fused", 1, |lock, _| lock.recipe(Fused);
}
