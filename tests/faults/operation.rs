//! The operations of the guards, and the moment of each at which the fault strikes.

use crate::{
    Down, MS, SECOND,
    fault::Fault,
    support::eventually,
    witness::Witness,
    world::{Role, World},
};
use stampede_guard::Policy;
use tokio::time::{Instant, sleep};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// The entry is stored.
    Hit,
    /// The entry is not stored, and all callers ask at once.
    Miss,
    /// One process fetches, and the other process waits for it.
    Wait,
    /// One process fetches and is about to fill. Then the other process asks.
    Fill,
    /// The same with a value that is large enough to be staged.
    LargeFill,
    /// The entry is stale, and is refreshed in the background.
    Refresh,
    /// The entry is invalidated. Then all callers ask at once.
    Invalidate,
}

impl Operation {
    pub(crate) const ALL: [Self; 7] =
        [Self::Hit, Self::Miss, Self::Wait, Self::Fill, Self::LargeFill, Self::Refresh, Self::Invalidate];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::Wait => "wait",
            Self::Fill => "fill",
            Self::LargeFill => "large fill",
            Self::Refresh => "refresh",
            Self::Invalidate => "invalidate",
        }
    }

    pub(crate) fn policy(self) -> Policy {
        match self {
            Self::Refresh => Policy::fresh_for(20 * MS).jitter(0.0).stale_while_revalidate(60 * SECOND),
            _ => Policy::fresh_for(60 * SECOND),
        }
    }

    /// Returns the number of bytes that each value has besides its key and version.
    pub(crate) fn filler(self) -> usize {
        if self == Self::LargeFill { 8 << 10 } else { 0 }
    }

    /// Runs the operation once with many callers, and injects the fault at its worst moment.
    ///
    /// With a fault of a leader, the peer process fetches. With a fault of a waiter, it waits for this key, or for
    /// another key if the operation has no waiters. Returns the number of origin calls, or `None` if that moment did
    /// not come.
    pub(crate) async fn once(
        self,
        (world, witness): (&World, &Witness),
        key: &str,
        fault: Option<Fault>,
    ) -> Option<usize> {
        if let Self::Wait | Self::Fill | Self::LargeFill = self {
            let in_time = self.in_flight((world, witness), key, fault).await;
            if self != Self::Wait {
                assert_eq!(witness.guard(0).drain_within(60 * SECOND).await, 0); // the guard has filled or given up
                witness.ask(1, key, 1).await;
            }
            return in_time.then(|| witness.calls(key));
        }
        let peer = fault.and_then(Fault::peer);
        let stored = matches!(self, Self::Hit | Self::Refresh) || (self == Self::Invalidate && peer.is_none());
        if stored {
            witness.ask(0, key, 1).await;
            witness.guard(0).drain().await;
            sleep(30 * MS).await; // a short-lived entry is stale now
        }
        let before = witness.calls(key);
        let (other, waited_for) = (format!("{key}-other"), witness.hold(0, &format!("{key}-other")));
        let leader = {
            let (witness, other) = (witness.clone(), other.clone());
            async move { witness.ask(0, &other, 1).await }
        };
        let (mut aside, mut in_time) = (None, true);
        match peer {
            Some(Role::Leads) => world.spawn_peer(Role::Leads, if self == Self::Hit { &other } else { key }).await,
            Some(Role::Waits) => {
                aside = Some(tokio::spawn(leader));
                waited_for.arrived(1).await;
                world.spawn_peer(Role::Waits, &other).await;
                in_time = world.is_waited_for_by(1, &other).await;
            }
            None => {}
        }
        if let Some(fault) = fault.filter(|_| in_time) {
            fault.strike(world).await;
        }
        witness.struck();
        match self {
            Self::Invalidate => _ = self.again(witness, key).await,
            _ => witness.herd(CALLERS, &[0, 1], key, 1).await,
        }
        waited_for.open();
        if let Some(aside) = aside {
            aside.await.expect("no panic");
        }
        in_time.then(|| witness.calls(key) - before)
    }

    /// Injects the fault during the fetch. Returns `false` if the expected waiters did not appear.
    async fn in_flight(self, (world, witness): (&World, &Witness), key: &str, fault: Option<Fault>) -> bool {
        let peer = fault.and_then(Fault::peer);
        let led_here = peer != Some(Role::Leads);
        let origin = witness.hold(0, key);
        if !led_here {
            origin.open();
            world.spawn_peer(Role::Leads, key).await;
        }
        let leader = async {
            if led_here {
                witness.ask(0, key, 1).await;
            }
        };
        let others = async {
            if led_here {
                origin.arrived(1).await;
            }
            let process = if self == Self::Wait { 1 } else { 0 };
            witness.herd(CALLERS, &[process], key, 1).await;
        };
        let strike = async {
            let mut waiting = usize::from(self == Self::Wait || !led_here);
            if peer == Some(Role::Waits) {
                origin.arrived(1).await;
                world.spawn_peer(Role::Waits, key).await;
                waiting += 1;
            }
            let in_time = world.is_waited_for_by(waiting, key).await;
            match fault {
                Some(fault) if in_time => fault.strike(world).await,
                // Without a strike the peer is not needed.
                _ => drop(world.peer.lock().await.take()),
            }
            witness.struck();
            origin.open();
            in_time
        };
        tokio::join!(leader, others, strike).2
    }

    /// Repeats the operation while the fault lasts. Returns the number of origin calls.
    pub(crate) async fn again(self, witness: &Witness, key: &str) -> usize {
        let (before, mut floor) = (witness.calls(key), 1);
        if let Self::Invalidate = self {
            let (version, asked) = (witness.change(), Instant::now());
            // An invalidation that fails is retried later, see `settle`.
            if witness.guard(0).invalidate(key).await.is_ok() {
                floor = version;
            }
            witness.took(0, asked);
        }
        // The other process may not know of the invalidation yet.
        tokio::join!(witness.herd(CALLERS, &[0], key, floor), witness.herd(CALLERS, &[1], key, 1));
        witness.calls(key) - before
    }

    /// Asserts after the fault that no process serves a value older than the last invalidation.
    pub(crate) async fn settle(self, witness: &Witness, key: &str) {
        if let Self::Invalidate = self {
            let newest = format!("{key}@{}", witness.version());
            for process in [0, 1] {
                let fetch = || {
                    let newest = newest.clone();
                    async move || Ok::<_, Down>(newest)
                };
                eventually("no caller gets the invalidated value", async || {
                    witness.guard(process).fetch(key, fetch()).await.is_ok_and(|value| value == newest)
                })
                .await;
            }
        }
        witness.herd(1, &[0, 1], key, 1).await;
    }

    /// Returns the key for a round. Operations that need an absent entry get a new key each time.
    pub(crate) fn key(self, struck: &str, round: usize) -> String {
        match self {
            Self::Miss | Self::Wait | Self::Fill | Self::LargeFill => format!("{struck}-{round}"),
            Self::Hit | Self::Refresh | Self::Invalidate => struck.to_owned(),
        }
    }
}

const CALLERS: usize = 5;
