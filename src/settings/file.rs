//! Settings from a file: a policy, and the settings of a guard.

use crate::{
    config::StoreFailure,
    file_values::{LONGEST, duration, number},
    guard::StampedeGuard,
    near_cache::NearCacheConfig,
    outage_cache::OutageCacheConfig,
    policy::Policy,
};
use serde::{Deserialize, Deserializer};
use std::time::Duration;

/// Defines what a file may set of a type: each field has the name of a setter, and a function that reads it within
/// its range. A missing field keeps what the type has.
macro_rules! settings {
    ($(#[$doc:meta])* $pub:vis $name:ident of $target:ident { $($(#[$name_in_file:meta])? $field:ident: $type:ty $(= $read:literal)?,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        $pub struct $name {
            $($(#[$name_in_file])? $(#[serde(deserialize_with = $read)])? $field: Option<$type>,)+
        }

        impl $name {
            fn applied_to(self, mut target: $target) -> $target {
                $(if let Some(value) = self.$field {
                    target = target.$field(value);
                })+
                target
            }
        }
    };
}

settings! {
    /// The settings of a guard that belong in a file, with the feature `serde`: see
    /// [`StampedeGuard::settings`]. All fields are optional. They are named like the setters of the guard, which document
    /// them: `namespace`, `schema_version`, `policy`, `lease_ttl`, `wait_timeout`, `fetch_timeout`, `store_timeout`,
    /// `uncacheable_ttl`, `failure_ttl`, `max_waiters`, `max_fallback_fetches`, `max_detached`, `max_payload`,
    /// `on_store_failure` (`fail_open` or `fail_closed`), `near_cache` (`max_bytes`, `max_age`), `outage_cache` (`max_bytes`,
    /// `ttl`), `bypass`, `log_keys` and `track_hot_keys`.
    ///
    /// Durations are texts such as `"250ms"`, `"30s"` or `"1h 30m"`. A field with another name is an error that names
    /// it. The error of a value out of range has the value, its range and, in most formats, its position in the file.
    pub Settings of StampedeGuard {
        namespace: String,
        schema_version: u32,
        policy: Policy,
        lease_ttl: Duration = "duration::<10, LONGEST, _, _>",
        wait_timeout: Duration = "duration::<0, LONGEST, _, _>",
        fetch_timeout: Duration = "duration::<1, LONGEST, _, _>",
        store_timeout: Duration = "duration::<1, LONGEST, _, _>",
        uncacheable_ttl: Duration = "duration::<0, LONGEST, _, _>",
        failure_ttl: Duration = "duration::<0, 99_000, _, _>",
        max_waiters: usize = "number::<1, { u32::MAX }, _, _>",
        max_fallback_fetches: usize = "number::<1, { u32::MAX }, _, _>",
        max_detached: usize,
        max_payload: usize = "number::<0, 512_000_000, _, _>",
        on_store_failure: StoreFailure,
        near_cache: NearCacheConfig,
        outage_cache: OutageCacheConfig,
        bypass: bool,
        log_keys: bool,
        track_hot_keys: usize,
    }
}

settings! {
    /// What a file says of a policy.
    PolicySettings of Policy {
        #[serde(rename = "fresh_for")]
        lifetime: Duration = "duration::<0, LONGEST, _, _>",
        stale_while_revalidate: Duration = "duration::<0, LONGEST, _, _>",
        stale_if_error: Duration = "duration::<0, LONGEST, _, _>",
        keep_for_validation: Duration = "duration::<0, LONGEST, _, _>",
        soft_timeout: Duration = "duration::<0, LONGEST, _, _>",
        absent_for: Duration = "duration::<0, LONGEST, _, _>",
        jitter: f64 = "number::<0, 1, _, _>",
        early_refresh: f64 = "number::<0, 1_000_000, _, _>",
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        PolicySettings::deserialize(deserializer).map(|settings| settings.applied_to(Self::default()))
    }
}

impl StampedeGuard {
    /// Changes the settings that the file names, as the setters of the same names do. Others stay.
    ///
    /// ```
    /// # fn main() -> Result<(), serde_json::Error> {
    /// use stampede_guard::{Settings, StampedeGuard};
    ///
    /// let settings: Settings = serde_json::from_str(
    ///     r#"{
    ///         "namespace": "shop",
    ///         "fetch_timeout": "20s",
    ///         "policy": {"fresh_for": "5m", "stale_while_revalidate": "30s", "jitter": 0.2},
    ///         "near_cache": {"max_bytes": 67108864}
    ///     }"#,
    /// )?;
    /// let guard = StampedeGuard::in_memory().settings(settings);
    ///
    /// let error = serde_json::from_str::<Settings>(r#"{"fetch_timout": "20s"}"#).unwrap_err();
    /// assert!(error.to_string().starts_with("unknown field `fetch_timout`, expected one of `namespace`,"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Settings that are code (`classify`, `http`, `codec`, `named`) are none of a file. A [`Policy`] may be read alone, for
    /// the policies of several views.
    pub fn settings(self, settings: Settings) -> Self {
        settings.applied_to(self)
    }
}
