//! Which computation waits for which key, so that none waits for itself by way of others.

use super::{Led, Place};
use crate::key::Address;
use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The questions of one engine that are asked from within computations of the same engine. What other engines and other
/// processes wait for is not seen here: there the wait budget ends a cycle.
#[derive(Default)]
pub(super) struct Waits {
    asked_by: Mutex<HashMap<Address, Vec<Address>>>,
}

/// A question within a computation, until it is dropped.
pub(super) struct Waiting {
    place: Place,
    by: Address,
}

impl Waiting {
    /// Takes note of the question, if it is asked within a computation of this engine. In a box: few questions are.
    pub(super) fn enter(place: &Place, leading: &[Led]) -> Option<Box<Self>> {
        let by = innermost(place, leading)?;
        place.engine.waits.lock().entry(by.clone()).or_default().push(resource(&place.at));
        Some(Box::new(Self { place: place.clone(), by }))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut asked_by = self.place.engine.waits.lock();
        let Some(asked) = asked_by.get_mut(&self.by) else { return };
        let this = resource(&self.place.at);
        if let Some(one) = asked.iter().position(|at| *at == this) {
            asked.swap_remove(one);
        }
        if asked.is_empty() {
            asked_by.remove(&self.by);
        }
    }
}

impl Waits {
    /// Whether a computation of the key waits, perhaps by way of others, for one of those that are led. Of two that wait
    /// for each other at least the later one sees it, since each has taken note of its question before it looks.
    pub(super) fn closes_a_cycle(&self, place: &Place, leading: &[Led]) -> bool {
        if innermost(place, leading).is_none() {
            return false;
        }
        let asked_by = self.lock();
        let (mut seen, mut next) = (HashSet::new(), vec![resource(&place.at)]);
        while let Some(at) = next.pop() {
            if leading.iter().any(|led| led.at.same_resource(&at)) {
                return true;
            }
            if let Some(asked) = asked_by.get(&at)
                && seen.insert(at)
            {
                next.extend(asked.iter().cloned());
            }
        }
        false
    }

    /// Nothing in here panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, HashMap<Address, Vec<Address>>> {
        self.asked_by.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The computation within which the question is asked.
fn innermost(place: &Place, leading: &[Led]) -> Option<Address> {
    let here = |led: &&Led| std::sync::Arc::ptr_eq(&led.store, &place.engine.store);
    leading.iter().rev().find(here).map(|led| resource(&led.at))
}

/// Computations are shared between schemas.
fn resource(at: &Address) -> Address {
    at.in_schema(0)
}
