//! The protocol between processes and store, as a model that is checked in all its states.
//!
//! Real servers and processes show what happens; a checker shows what can. It takes one step after the other in every
//! order: requests and answers are late, lost or doubled, leases run out while their holders sleep, processes die,
//! wake-ups do not come, a replica takes over. In each state the invariants I1 to I5 and what I8 asks of leases must
//! hold.
//!
//! ```sh
//! cargo test --test model                                      # under a minute
//! cargo test --release --test model -- --ignored --nocapture   # the large ones: half an hour, some GB
//! ```
//!
//! # What is modelled
//!
//! One key, an origin whose value is the number of its commits, and a writer in process 0 that invalidates after each.
//! [`server`] mirrors the scripts; [`reader`], [`pilot`] and [`wake`] mirror the engine, from the lookup that is shared
//! to the fill that is sent again; [`action`] says what may happen next, and [`protocol`] what must hold. A [`config`]
//! bounds how often readers ask, how many commits there are, and how many mishaps; all else happens at any time and any
//! number of times, polls and expiry included. That this is finite is due to [`names`].
//!
//! What a reader must not get is told by version: [`protocol::NO_STALE_READ`] compares with the invalidations that its
//! process had heard of when it asked, by doing them itself or because one of its flights was told `gone`. A flight
//! that fills, or gives its lease back, does not listen: until it is answered, its process has not heard.
//!
//! [`near_cache`], [`vary`] and [`tags`] are models of their own, of rules that the code does not have yet.
//!
//! # What is simpler than the code
//!
//! * Spans are left out: what can run out does so at any time. So are counts in tombstones, jitter, and clocks; a stamp
//!   is a name that differs from grant to grant.
//! * A fetch reads its origin at the moment it may. To read later gives nothing older, and the answer that allows it
//!   may be as late as it likes.
//! * All who joined a flight are told in one step. A reader's own calls, which nobody shares, are not followed.
//! * An answer is given at its head, and stored from there. Markers are of the private kind; `PassStore`, the cap and
//!   bodies that break off are left out, and so are nested computations, schemas and limits (inboxes, rounds, hits in a
//!   row).
//! * A poll that no wake-up caused and one that a wake-up did are the same question, so messages that only wake are
//!   modelled where nobody polls ([`liveness`]).
//! * A circuit breaker that is open is a loss that is known at once; the queue for its local fetches is left out.
//! * Entry and lease are dropped, expire and fail over on one server. A failover happens once.
//!
//! # What it cannot promise
//!
//! A failover that loses an invalidation lets an older fill land ([`mutations`] shows it). What that stores is served
//! until its retention ends, and no longer.

#![allow(clippy::disallowed_methods)] // runs are timed

mod action;
mod check;
mod config;
mod event;
mod liveness;
mod mutations;
mod names;
mod near_cache;
mod pilot;
mod protocol;
mod reader;
mod rules;
mod safety;
mod server;
mod state;
mod step;
mod tags;
mod vary;
mod wake;
