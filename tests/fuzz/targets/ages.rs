//! `Age`, `Date` and `Expires`, and the freshness lifetime they result in, at any time of the clock.

use super::{append, lines};
use http::{
    HeaderMap, StatusCode,
    header::{AGE, CACHE_CONTROL, DATE, EXPIRES},
};
use stampede_guard::{
    fuzzing,
    store::{CacheKey, Entry, Inbox, Kind, Lifetimes, Meta, Timestamp, Token},
};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The input: eight bytes of time, then a line for each field.
pub(super) fn hold(input: &[u8]) {
    let Some((seconds, fields)) = input.split_first_chunk() else { return };
    let seconds = u64::from_le_bytes(*seconds);
    let mut headers = HeaderMap::new();
    for (name, value) in [EXPIRES, DATE, AGE, CACHE_CONTROL].into_iter().zip(lines(fields)) {
        append(&mut headers, name, value);
    }
    // Within the range of the clock of a host.
    if let Some(now) = UNIX_EPOCH.checked_add(Duration::from_secs(seconds)) {
        are_never_too_long(&headers, now);
    }
    are_kept_to_the_second(seconds);
}

fn are_never_too_long(headers: &HeaderMap, now: SystemTime) {
    let lifetime = |headers: &HeaderMap, now| fuzzing::may_store(StatusCode::OK, headers, now).flatten();
    let aged = lifetime(headers, now).unwrap_or_default();
    assert!(aged <= LAST_DATE, "{aged:?}");
    assert_eq!(
        u128::from(fuzzing::age(headers).as_secs()),
        headers.get(AGE).map_or(0, |value| age_in(value.as_bytes()))
    );
    // RFC 9111 §4.2.3: the greater of the `Age` field and the apparent age from `Date`.
    let made = headers.get(DATE).and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok());
    let apparent = made.and_then(|made| now.duration_since(made).ok()).unwrap_or_default();
    let age = fuzzing::age(headers).max(apparent);
    let mut ageless = headers.clone();
    ageless.remove(AGE);
    let whole = lifetime(&ageless, made.unwrap_or(now)).unwrap_or_default();
    // The guard reads dates in another case, and with the name of another day, which `httpdate` refuses.
    if made.is_some() || !headers.contains_key(DATE) {
        assert_eq!(aged, whole.saturating_sub(age));
    }
    if let Some(later) = now.checked_add(Duration::from_secs(1)) {
        assert!(lifetime(headers, later).unwrap_or_default() <= aged, "a later time makes the response younger");
    }
    can_be_stored(aged);
}

/// Returns the first member of the list if it is a number, otherwise 0.
fn age_in(value: &[u8]) -> u128 {
    let first = String::from_utf8_lossy(value.split(|byte| *byte == b',').next().unwrap_or_default()).into_owned();
    let digits = first.trim_matches([' ', '\t']);
    let number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if number { digits.parse().unwrap_or(u128::MAX).min(1 << 31) } else { 0 }
}

/// Two dates in one of the HTTP date formats, and the lifetime between them.
fn are_kept_to_the_second(seconds: u64) {
    let (date, lifetime) = (seconds >> 32, seconds & 0xffff_ffff);
    let at = |seconds: u64| httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(seconds));
    let mut headers = HeaderMap::new();
    append(&mut headers, DATE, at(date).as_bytes());
    append(&mut headers, EXPIRES, at(date + lifetime).as_bytes());
    let expected = (lifetime > 0).then(|| Some(Duration::from_secs(lifetime)));
    assert_eq!(fuzzing::may_store(StatusCode::OK, &headers, UNIX_EPOCH), expected);
}

/// An entry of any lifetime can be written, read and evaluated at any time.
fn can_be_stored(lifetime: Duration) {
    let mut lifetimes = Lifetimes::fresh_for(lifetime);
    (lifetimes.stale_while_revalidate, lifetimes.stale_if_error) = (Duration::MAX, lifetime);
    for response_time in [i64::MIN, 0, i64::MAX] {
        let id = Token::unique(Inbox::unique());
        let response_time = Timestamp::from_micros(response_time);
        let mut meta = Meta::new(Kind::Value, id, response_time);
        (meta.cost, meta.lifetimes) = (lifetime, lifetimes);
        let at = CacheKey::new("sg", 0, "key");
        let envelope = Entry::new(meta, bytes::Bytes::new()).to_envelope(&at, i64::MAX);
        let read = Entry::from_envelope(&at, &envelope, i64::MAX).expect("what was written is read");
        assert_eq!(read.meta().lifetimes.fresh_for, lifetime);
        assert!(read.is_retained(read.meta().response_time));
    }
}

/// The end of the year 9999, the last date that HTTP can express.
const LAST_DATE: Duration = Duration::from_secs(253_402_300_800);
