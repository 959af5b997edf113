//! Values of a file of settings, within their ranges.

use serde::{Deserialize, Deserializer, de::Error};
use std::{fmt::Display, time::Duration};

/// Reads a duration as people write it, within these bounds in milliseconds.
pub(crate) fn duration<'de, const MIN: u64, const MAX: u64, D: Deserializer<'de>, T: From<Duration>>(
    deserializer: D,
) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    let span = humantime::parse_duration(&text).map_err(|error| D::Error::custom(format_args!("{text:?}: {error}")))?;
    let (min, max) = (Duration::from_millis(MIN), Duration::from_millis(MAX));
    let out_of_range = || D::Error::custom(format_args!("{text:?} is not from {min:?} to {max:?}"));
    (min..=max).contains(&span).then(|| span.into()).ok_or_else(out_of_range)
}

/// Reads a number within these bounds.
pub(crate) fn number<'de, const MIN: u32, const MAX: u32, D: Deserializer<'de>, T>(
    deserializer: D,
) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de> + PartialOrd + TryFrom<u32> + Display,
{
    let number = T::deserialize(deserializer)?;
    if T::try_from(MIN).is_ok_and(|min| min <= number) && T::try_from(MAX).is_ok_and(|max| number <= max) {
        return Ok(Some(number));
    }
    Err(D::Error::custom(format_args!("{number} is not from {MIN} to {MAX}")))
}

/// A hundred years in milliseconds, which every timer can wait for.
pub(crate) const LONGEST: u64 = 100 * 365 * 24 * 3_600_000;
