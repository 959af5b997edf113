//! Tests of the lock recipes without the cache: their guarantees and their known failures.
#![allow(clippy::disallowed_methods, reason = "tests make their own time and randomness")]

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
    Counter, ExistsSetex, FencedLock, GetSet, Redlock, Rename, SetMembership, SetPx, SetnxExpire, Watch,
};
use stampede_guard_support as support;
use support::SECOND;

// Per recipe: its label in docs/locks.md, its number of servers, and how a lock is built with it.
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
    fenced_lock: "FencedLock", 1, |lock, _| lock.recipe(FencedLock);
}
