//! The subjects, one file each.

#[cfg(feature = "peers")]
pub(crate) mod amalgam;
#[cfg(feature = "peers")]
mod axum_response_cache;
#[cfg(feature = "peers")]
mod cached;
#[cfg(feature = "peers")]
mod foyer;
#[cfg(feature = "peers")]
mod hitbox;
mod moka;
pub(crate) mod own;
mod raw;
#[cfg(feature = "peers")]
mod seed_loop;
pub(crate) mod serve;
#[cfg(feature = "peers")]
mod setnx_loop;
#[cfg(feature = "peers")]
mod tower_http_cache;

use crate::subject::Entry;
use std::time::Duration;

/// In the order of the tables.
pub(crate) const ALL: &[Entry] = &[
    own::FETCH,
    own::NEAR,
    own::LAYER,
    raw::GET,
    raw::ASIDE,
    #[cfg(feature = "peers")]
    seed_loop::ENTRY,
    #[cfg(feature = "peers")]
    setnx_loop::ENTRY,
    #[cfg(feature = "peers")]
    hitbox::ENTRY,
    #[cfg(feature = "peers")]
    tower_http_cache::ENTRY,
    #[cfg(feature = "peers")]
    amalgam::ENTRY,
    #[cfg(feature = "peers")]
    amalgam::STRICT,
    #[cfg(feature = "peers")]
    cached::ENTRY,
    own::EMBEDDED,
    moka::ENTRY,
    #[cfg(feature = "peers")]
    foyer::ENTRY,
    #[cfg(feature = "peers")]
    axum_response_cache::ENTRY,
];

/// Reports whether `--quick` needs the subject, which is then built without the feature `peers`.
pub(crate) fn is_quick(entry: &Entry) -> bool {
    let quick = [&own::FETCH, &own::NEAR, &own::LAYER, &own::EMBEDDED, &raw::GET, &raw::ASIDE, &moka::ENTRY];
    quick.iter().any(|one| one.name == entry.name)
}

pub(crate) fn named(name: &str) -> Option<&'static Entry> {
    ALL.iter().find(|entry| entry.name == name)
}

/// The time for which every subject keeps a value, longer than a scenario takes.
const TTL: Duration = Duration::from_secs(600);
