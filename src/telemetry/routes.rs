//! Finds routes of which none of the first 1,000 responses was stored or shared.

use crate::{
    sync::mutex::Mutex,
    uncached::{Uncached, UncachedCounters},
};
use std::{
    collections::HashMap,
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
};

/// The routes of an engine that have been requested.
#[derive(Debug, Default)]
pub(crate) struct Routes(Mutex<Tables>);

#[derive(Debug, Default)]
struct Tables {
    /// By the path with which a router has matched them, so that clients do not choose the keys.
    matched: HashMap<Box<str>, Arc<Route>>,
    /// Requests without such a path, by the settings of their guard.
    unmatched: HashMap<usize, Arc<Route>>,
}

/// The responses of one route that were neither stored nor shared.
#[derive(Debug)]
pub(crate) struct Route {
    name: Box<str>,
    reasons: UncachedCounters,
    responses: AtomicU32,
    /// Set once the route was cacheable, or was reported.
    is_settled: AtomicBool,
}

impl Routes {
    /// Returns the route of a request: its matched path, or otherwise the settings of the guard. `None` if the route needs
    /// no attention any more, or the table is full.
    ///
    /// The layered service cannot identify the route, because axum creates one for each connection.
    pub(crate) fn find(&self, matched_path: Option<&str>, settings: usize) -> Option<Arc<Route>> {
        let mut tables = self.0.lock();
        let route = match matched_path {
            Some(path) => match tables.matched.get(path) {
                Some(route) => route.clone(),
                None => insert(&mut tables.matched, MAX_MATCHED, path.into(), path)?,
            },
            None => match tables.unmatched.get(&settings) {
                Some(route) => route.clone(),
                None => insert(&mut tables.unmatched, MAX_UNMATCHED, settings, UNMATCHED)?,
            },
        };
        (!route.is_settled.load(Relaxed)).then_some(route)
    }
}

fn insert<K: Eq + Hash>(table: &mut HashMap<K, Arc<Route>>, limit: usize, key: K, name: &str) -> Option<Arc<Route>> {
    let route = || {
        Arc::new(Route {
            name: name.into(),
            reasons: UncachedCounters::default(),
            responses: AtomicU32::new(0),
            is_settled: AtomicBool::new(false),
        })
    };
    (table.len() < limit).then(|| table.entry(key).or_insert_with(route).clone())
}

impl Route {
    /// Records a response that was stored or shared.
    pub(super) fn was_cacheable(&self) {
        self.is_settled.store(true, Relaxed);
    }

    /// Records another response. Returns the name of the route and its most frequent reason, once, if no response was
    /// cacheable so far and there are enough of them.
    pub(super) fn was_uncached(&self, reason: Uncached) -> Option<(&str, Uncached)> {
        if self.is_settled.load(Relaxed) {
            return None;
        }
        self.reasons.count(reason);
        let is_due = self.responses.fetch_add(1, Relaxed) + 1 >= REPORTED_AFTER && !self.is_settled.swap(true, Relaxed);
        is_due.then(|| (&*self.name, self.reasons.snapshot().most_frequent()))
    }
}

/// Number of responses after which a route without a cacheable one is reported.
const REPORTED_AFTER: u32 = 1_000;
/// Maximum number of routes with a matched path. A route takes about 400 bytes.
const MAX_MATCHED: usize = 224;
/// Maximum number of guard settings that are tracked for requests without a matched path. Smaller, because an application
/// may create a guard per request.
const MAX_UNMATCHED: usize = 32;
const UNMATCHED: &str = "a layer without a matched path";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_of_routes_is_bounded() {
        let (routes, settings) = (Routes::default(), 0);
        for n in 0..2 * MAX_MATCHED {
            assert_eq!(routes.find(Some(&format!("/{n}")), settings).is_some(), n < MAX_MATCHED, "{n}");
        }
        assert!(routes.find(Some("/0"), settings).is_some() && routes.find(None, settings).is_some());
        let found = (1..2 * MAX_UNMATCHED).filter(|settings| routes.find(None, *settings).is_some()).count();
        assert_eq!(found, MAX_UNMATCHED - 1);
    }

    #[test]
    fn route_is_reported_once_with_its_most_frequent_reason() {
        let routes = Routes::default();
        let route = routes.find(Some("/me"), 0).expect("there is room");
        for n in 1..REPORTED_AFTER {
            let reason = if n % 3 == 0 { Uncached::SetCookie } else { Uncached::Private };
            assert_eq!(route.was_uncached(reason), None, "{n}");
        }
        assert_eq!(route.was_uncached(Uncached::SetCookie), Some(("/me", Uncached::Private)));
        assert_eq!(route.was_uncached(Uncached::SetCookie), None);
        assert!(routes.find(Some("/me"), 0).is_none(), "it needs no attention any more");
    }

    #[test]
    fn route_that_was_cacheable_once_is_not_reported() {
        let routes = Routes::default();
        let route = routes.find(None, 0).expect("there is room");
        route.was_cacheable();
        assert!((0..2 * REPORTED_AFTER).all(|_| route.was_uncached(Uncached::Private).is_none()));
    }
}
