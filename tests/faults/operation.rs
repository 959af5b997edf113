//! What is asked of the guards while something goes wrong, and at which point of it that happens.

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
    /// The entry is there.
    Hit,
    /// It is not, and everybody asks.
    Miss,
    /// One process computes, the other one waits for it.
    Wait,
    /// One process computes, and is about to fill; then the other one asks.
    Fill,
    /// The entry is stale, and is to be refreshed behind.
    Refresh,
    /// The entry has to go; then everybody asks.
    Invalidate,
}

impl Operation {
    pub(crate) const ALL: [Self; 6] = [Self::Hit, Self::Miss, Self::Wait, Self::Fill, Self::Refresh, Self::Invalidate];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::Wait => "wait",
            Self::Fill => "fill",
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

    /// Runs it once, among many callers, with the fault at its worst moment. With a fault of a leader, that is who
    /// computes; a waiter waits for this key, or for another one if nobody waits for this one.
    ///
    /// Returns how many calls of the origin it took; `None` if that moment did not come.
    pub(crate) async fn once(
        self,
        (world, witness): (&World, &Witness),
        key: &str,
        fault: Option<Fault>,
    ) -> Option<usize> {
        if let Self::Wait | Self::Fill = self {
            let in_time = self.in_flight((world, witness), key, fault).await;
            if let Self::Fill = self {
                witness.guard(0).shutdown().await; // it has filled, or has given up
                witness.ask(1, key, 1).await;
            }
            return in_time.then(|| witness.calls(key));
        }
        let peer = fault.and_then(Fault::peer);
        let stored = matches!(self, Self::Hit | Self::Refresh) || (self == Self::Invalidate && peer.is_none());
        if stored {
            witness.ask(0, key, 1).await;
            witness.guard(0).shutdown().await;
            sleep(30 * MS).await; // what is to be stale is stale
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

    /// The fault strikes while the origin computes; `false` if it did not come to that.
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
                // Whoever was to be struck is in nobody's way.
                _ => drop(world.peer.lock().await.take()),
            }
            witness.struck();
            origin.open();
            in_time
        };
        tokio::join!(leader, others, strike).2
    }

    /// Once more, while it still goes wrong. Returns how many calls of the origin that took.
    pub(crate) async fn again(self, witness: &Witness, key: &str) -> usize {
        let (before, mut floor) = (witness.calls(key), 1);
        if let Self::Invalidate = self {
            let (version, asked) = (witness.change(), Instant::now());
            // What is not acknowledged is made up for later, see `settle`.
            if witness.guard(0).invalidate(key).await.is_ok() {
                floor = version;
            }
            witness.took(0, asked);
        }
        // The other process may not have heard of an invalidation yet.
        tokio::join!(witness.herd(CALLERS, &[0], key, floor), witness.herd(CALLERS, &[1], key, 1));
        witness.calls(key) - before
    }

    /// When all is well again: nobody has anything older than the newest, however it was invalidated.
    pub(crate) async fn settle(self, witness: &Witness, key: &str) {
        if let Self::Invalidate = self {
            let newest = format!("{key}@{}", witness.version());
            for process in [0, 1] {
                let fetch = || {
                    let newest = newest.clone();
                    async move || Ok::<_, Down>(newest)
                };
                eventually("what was invalidated is gone", async || {
                    witness.guard(process).fetch(key, fetch()).await.is_ok_and(|value| value == newest)
                })
                .await;
            }
        }
        witness.herd(1, &[0, 1], key, 1).await;
    }

    /// The key to ask for in that round: another one each time, if it is not to be there.
    pub(crate) fn key(self, struck: &str, round: usize) -> String {
        match self {
            Self::Miss | Self::Wait | Self::Fill => format!("{struck}-{round}"),
            Self::Hit | Self::Refresh | Self::Invalidate => struck.to_owned(),
        }
    }
}

const CALLERS: usize = 5;
