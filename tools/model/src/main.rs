//! The protocol between processes and store, as a model that is checked in all its states.
//!
//! Tests with real servers and processes show some schedules; the checker visits all of them. It takes the steps in
//! every order. Requests and replies are late, lost or duplicated. Leases expire while their holders pause, processes
//! die, wake-ups are lost, and a replica takes over. In each state the invariants I1 to I5 must hold, and what I8 asks
//! of leases.
//!
//! ```sh
//! cargo test -p model                                      # under a minute
//! cargo test --release -p model -- --ignored --nocapture   # the large ones: half an hour, some GB
//! ```
//!
//! # What is modelled
//!
//! One key, an origin whose value is the number of its commits, and writers that invalidate, put or expire after each
//! commit. Some readers refresh ([`verbs`]). [`server`] mirrors the scripts. [`reader`], [`leader`] and [`wake`] mirror the engine, from the shared
//! lookup to the repeated fill. [`action`] lists what may happen next, and [`protocol`] what must hold. A [`config`]
//! bounds how many times readers ask, the number of commits, and the number of mishaps. Everything unbounded happens at
//! any time and any number of times, polls and expiry included. The state space is still finite because of [`names`].
//!
//! A stale read is recognised by version: [`protocol::NO_STALE_READ`] compares it with the invalidations that the
//! process of the reader had learned of when the reader asked. A process learns of an invalidation by performing it, or
//! when an invalidation message reaches one of its flights. A flight does not listen while it fills or releases its
//! lease, so its process learns nothing until the reply arrives.
//!
//! A put counts from its first script on, so of two puts the one whose first script came last has the later commit. A
//! value that a caller has expired may be served as a stale one. A refresh must return no commit from before its call.
//!
//! [`pending`], [`near_cache`], [`vary`] and [`tags`] are models of their own; the code does not have the rules of the
//! last three yet.
//!
//! # What is simpler than the code
//!
//! * Durations are left out: whatever can end or expire does so at any time. Counts in failure markers, jitter and
//!   clocks are left out as well. A stamp is a name that differs from grant to grant.
//! * The end of a lease, and the end of the quarter of a second after its mark, are steps that may come at any time.
//!   With [`config::Config::ends`] a server that stalls comes first to the extension that was sent before the lease
//!   ended.
//! * A fetch reads its origin at the moment of the grant. Reading later gives nothing older, and the reply with the
//!   grant may arrive at any later time.
//! * All waiters of a flight get its outcome in one step. A reader's own calls, which no other reader shares, are not
//!   followed.
//! * A response is given at its head, and stored from there. Markers are hit-for-pass markers. `DoNotStore` markers,
//!   the payload cap and truncated bodies are left out, and so are nested fetches, schema versions and limits (inboxes,
//!   attempts, consecutive hits).
//! * A staged fill is one step, that of its script: no other client uses the name of the staged entry. What may differ
//!   from a fill whose entries are arguments is that the staged entry is missing: the server refuses the fill, which any
//!   fill may meet.
//! * A poll sends the same request whether or not a wake-up caused it. Messages that only wake are therefore modelled
//!   only where waiters do not poll ([`liveness`]).
//! * An open circuit breaker is a loss that is known at once. The queue for its local fetches is left out. After a loss,
//!   a flight that has heard of a lease waits on or continues without the store, at any time.
//! * A deadline ends like a wait timeout that rejects. A refresh that another process does ends at once, because the
//!   time for which it keeps its slot changes only when readers ask.
//! * The stamps of leases are names. A refresh lists those of the entries and leases that were there when it first heard
//!   of a holder, which is what a comparison of stamps tells. An entry is expired, or not: the comparison of its stamp
//!   with the time of the expire is left out, and so are redirects to variants.
//! * Entry and lease are invalidated, expire and fail over on one server. A failover happens at most once.
//!
//! # What it cannot promise
//!
//! A failover that loses an invalidation lets an older fill be stored ([`mutations`] shows it). Readers are served that
//! entry until its retention ends, and no longer.

#![allow(clippy::disallowed_methods, reason = "runs are timed")]

mod action;
mod check;
mod config;
mod event;
mod leader;
mod liveness;
mod mutations;
mod names;
mod near_cache;
mod pending;
mod protocol;
mod reader;
mod rules;
mod safety;
mod server;
mod state;
mod step;
mod tags;
mod vary;
mod verbs;
mod wake;
