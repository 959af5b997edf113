//! Finds routes of which none of the first 1,000 responses was stored or shared, and request fields that keep the
//! responses of a route apart.

use crate::{key::KeyHash, sync::mutex::Mutex, uncached::Uncached};
use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

/// The routes of an engine that have been requested, by the path with which a router has matched them, so that clients
/// do not choose the keys.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    by_path: Mutex<HashMap<Box<str>, Arc<Route>>>,
    /// Whether a clone of the guard is a layer.
    pub(crate) is_layer: AtomicBool,
}

/// The responses of one route.
#[derive(Debug, Default)]
pub(crate) struct Route {
    pub(crate) name: Box<str>,
    /// Why they were neither stored nor shared.
    reasons: Mutex<HashMap<Uncached, u32>>,
    /// The values of request fields that select them without a `Vary`.
    values: Mutex<HashMap<Box<str>, HashSet<KeyHash>>>,
    /// Set once the route was cacheable, or was reported.
    is_settled: AtomicBool,
}

impl Routes {
    /// Returns the route of a request. All requests without a matched path are one route. `None` if the table is full.
    ///
    /// The layered service cannot identify the route, because axum creates one for each connection.
    pub(crate) fn find(&self, matched_path: Option<&str>) -> Option<Arc<Route>> {
        let name = matched_path.unwrap_or(UNMATCHED);
        let mut routes = self.by_path.lock();
        if !routes.contains_key(name) {
            if matched_path.is_some() && routes.len() >= MAX_ROUTES {
                return None;
            }
            routes.insert(name.into(), Arc::new(Route { name: name.into(), ..Route::default() }));
        }
        routes.get(name).cloned()
    }
}

impl Route {
    /// Records a response that was stored or shared.
    pub(crate) fn was_cacheable(&self) {
        self.is_settled.store(true, Relaxed);
    }

    /// Records a value of a field that selects responses. Reports, once for each field, that it has many values.
    pub(crate) fn has_many_values(&self, field: &str, value: KeyHash) -> bool {
        let mut fields = self.values.lock();
        if field.len() > MAX_NAME || fields.len() >= MAX_FIELDS && !fields.contains_key(field) {
            return false;
        }
        let values = fields.entry(field.into()).or_default();
        values.len() < MANY_VALUES && values.insert(value) && values.len() == MANY_VALUES
    }

    /// Records another response. Returns the name of the route and its most frequent reason, once, if no response was
    /// cacheable so far and there are enough of them.
    pub(super) fn was_uncached(&self, reason: Uncached) -> Option<(&str, Uncached)> {
        if self.is_settled.load(Relaxed) {
            return None;
        }
        let mut reasons = self.reasons.lock();
        *reasons.entry(reason).or_default() += 1;
        if reasons.values().sum::<u32>() < REPORTED_AFTER || self.is_settled.swap(true, Relaxed) {
            return None;
        }
        let (most_frequent, _) = reasons.iter().max_by_key(|(_, count)| **count)?;
        Some((&self.name, *most_frequent))
    }
}

/// Number of responses after which a route without a cacheable one is reported.
const REPORTED_AFTER: u32 = 1_000;
/// Maximum number of routes with a matched path. A route takes about 400 bytes.
const MAX_ROUTES: usize = 256;
/// Number of values after which a field is reported.
const MANY_VALUES: usize = 9;
/// Maximum number of fields of a route, because clients choose names as well.
const MAX_FIELDS: usize = 32;
/// Maximum length of the name of such a field. A client may send one of 64 KiB.
const MAX_NAME: usize = 64;
const UNMATCHED: &str = "a layer without a matched path";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_of_routes_is_bounded() {
        let routes = Routes::default();
        for n in 0..2 * MAX_ROUTES {
            assert_eq!(routes.find(Some(&format!("/{n}"))).is_some(), n < MAX_ROUTES, "{n}");
        }
        assert!(routes.find(Some("/0")).is_some() && routes.find(None).is_some());
        assert_eq!(routes.by_path.lock().len(), MAX_ROUTES + 1);
    }

    #[test]
    fn route_is_reported_once_with_its_most_frequent_reason() {
        let routes = Routes::default();
        let route = routes.find(Some("/me")).expect("there is room");
        for n in 1..REPORTED_AFTER {
            let reason = if n % 3 == 0 { Uncached::SetCookie } else { Uncached::Private };
            assert_eq!(route.was_uncached(reason), None, "{n}");
        }
        assert_eq!(route.was_uncached(Uncached::SetCookie), Some(("/me", Uncached::Private)));
        assert_eq!(route.was_uncached(Uncached::SetCookie), None);
    }

    #[test]
    fn field_is_reported_once_at_its_ninth_value() {
        let routes = Routes::default();
        let route = routes.find(None).expect("there is room");
        let report = |field: &str, n: u8| route.has_many_values(field, KeyHash::from_bytes([n; 16]));
        let reported: Vec<_> = (0..40).filter(|n| report("x-tenant", n / 2)).collect();
        assert_eq!(reported, [16]);
        assert!(
            !(0..40).any(|n| report(&"x".repeat(MAX_NAME + 1), n)),
            "clients choose names, which stay in the table"
        );
        for n in 0..2 * MAX_FIELDS {
            report(&format!("x-{n}"), 0);
        }
        assert_eq!(route.values.lock().len(), MAX_FIELDS);
    }

    #[test]
    fn route_that_was_cacheable_once_is_not_reported() {
        let routes = Routes::default();
        let route = routes.find(None).expect("there is room");
        route.was_cacheable();
        assert!((0..2 * REPORTED_AFTER).all(|_| route.was_uncached(Uncached::Private).is_none()));
    }
}
