//! The slots of a cluster in which this process has invalidated entries. A tracked read of such a slot must not go to
//! another node than the invalidation.
//!
//! The data client follows a slot to its new master at once, but a tracked read goes where the last topology says. If
//! the old master was cut off, it does not know yet that it was replaced, and still has the invalidated entry.

use super::{
    cluster_slots::{owner_of, parse_slots},
    connection::reconnecting::CommandLink,
    names::{lease_name, slot_of},
    scripts,
};
use crate::{clock::Timestamp, key::CacheKey, sync::mutex::Mutex};
use futures_util::future::join_all;
use std::{collections::HashMap, mem, sync::Arc};

/// The time of the last acknowledged invalidation in each slot. At most one for each slot of a cluster.
#[derive(Default)]
pub(super) struct InvalidatedSlots(Mutex<HashMap<u16, Timestamp>>);

impl InvalidatedSlots {
    /// Records an invalidation. To be called after the server has replied, and before the caller hears of it.
    pub(super) fn record(&self, keys: &[CacheKey]) {
        let (mut slots, now) = (self.0.lock(), Timestamp::now());
        slots.extend(keys.iter().map(|key| (slot_of(&lease_name(key)), now)));
    }

    fn last(&self, slot: u16) -> Option<Timestamp> {
        self.0.lock().get(&slot).copied()
    }
}

/// Finds out which master has executed the invalidations of a slot: the data client sends a script there, which
/// returns the view of that node.
pub(super) struct SlotChecks {
    invalidated: Arc<InvalidatedSlots>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The result of the last check of a slot: when it was sent, and the master.
    masters: HashMap<u16, (Timestamp, String)>,
    /// The slots to be checked next, each with a name in it.
    due: HashMap<u16, String>,
}

impl SlotChecks {
    pub(super) fn new(invalidated: Arc<InvalidatedSlots>) -> Self {
        Self { invalidated, state: Mutex::default() }
    }

    /// Reports whether this master has executed the invalidations of this process in the slot. If that is not known, the
    /// slot is due for a check, with this name.
    pub(super) fn may_read(&self, slot: u16, master: &str, name: &str) -> bool {
        let Some(invalidated_at) = self.invalidated.last(slot) else { return true };
        let mut state = self.state.lock();
        let is_known = |(sent_at, found): &(Timestamp, String)| *sent_at >= invalidated_at && found == master;
        if state.masters.get(&slot).is_some_and(is_known) {
            return true;
        }
        if state.due.len() < MAX_DUE {
            state.due.insert(slot, name.to_owned());
        }
        false
    }

    /// Checks the slots that are due.
    pub(super) async fn run(&self, data: &dyn CommandLink) {
        let due = mem::take(&mut self.state.lock().due);
        let checks = due.into_iter().map(|(slot, name)| async move {
            let sent_at = Timestamp::now();
            let view = data.send(&scripts::slots(&name)).await.ok()?;
            let master = owner_of(slot, &parse_slots(&view)?)?;
            Some((slot, (sent_at, master)))
        });
        let masters = join_all(checks).await;
        self.state.lock().masters.extend(masters.into_iter().flatten());
    }
}

/// Maximum number of slots in one round of checks. The rest is due again with its next read.
const MAX_DUE: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::error::BoxFuture;
    use redis::{Cmd, Pipeline, RedisResult, Value};

    /// The node where the data client sends the commands of all slots.
    struct Node(Mutex<&'static str>);

    impl CommandLink for Node {
        fn send<'a>(&'a self, _: &'a Cmd) -> BoxFuture<'a, RedisResult<Value>> {
            let id = Value::BulkString(self.0.lock().as_bytes().to_vec());
            let master = Value::Array(vec![Value::BulkString(b"10.0.0.1".to_vec()), Value::Int(7000), id]);
            let view = Value::Array(vec![Value::Array(vec![Value::Int(0), Value::Int(16_383), master])]);
            Box::pin(async { Ok(view) })
        }

        fn transact<'a>(&'a self, _: &'a Pipeline) -> BoxFuture<'a, RedisResult<Value>> {
            Box::pin(std::future::pending())
        }

        fn verify(&self) -> BoxFuture<'_, ()> {
            Box::pin(async {})
        }

        fn generation(&self) -> u64 {
            1
        }
    }

    /// Seen to fail if a check before the last invalidation counts.
    #[tokio::test(start_paused = true)]
    async fn invalidated_slot_is_read_at_the_master_that_executed_it() {
        let key = CacheKey::new("sg", 0, "key");
        let (name, slot) = (lease_name(&key), slot_of(&lease_name(&key)));
        let (invalidated, data) = (Arc::<InvalidatedSlots>::default(), Node(Mutex::new("old")));
        let checks = SlotChecks::new(invalidated.clone());
        let may_read = |master: &str| checks.may_read(slot, master, &name);
        assert!(may_read("old"), "nothing was invalidated");
        for _ in 0..2 {
            for (master, other) in [("new", "old"), ("old", "new")] {
                tokio::time::advance(std::time::Duration::from_millis(1)).await;
                *data.0.lock() = master;
                checks.run(&data).await;
                tokio::time::advance(std::time::Duration::from_millis(1)).await;
                invalidated.record(std::slice::from_ref(&key));
                assert!(!may_read(master) && !may_read(other), "the last check was before the invalidation");
                checks.run(&data).await;
                assert!(may_read(master) && !may_read(other));
            }
        }
        assert!(checks.may_read(slot ^ 1, "any", "of another slot"));
    }
}
