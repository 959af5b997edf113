use super::*;
use crate::http::semantics::kit::{at, date, headers, status};
use http::HeaderValue;
use proptest::prelude::*;

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const NOW: Times = Times { asked: std::time::UNIX_EPOCH, answered: std::time::UNIX_EPOCH };

fn by(rules: &Rules, credentials: Credentials, code: u16, fields: &[(&'static str, &str)]) -> Shared {
    shared(status(code), &headers(fields), credentials, NOW, rules)
}

fn of(code: u16, fields: &[(&'static str, &str)]) -> Shared {
    by(&Rules::default(), Credentials::None, code, fields)
}

fn control(value: &str) -> Shared {
    of(200, &[("cache-control", value)])
}

fn terms(shared: Shared) -> Terms {
    match shared {
        Shared::Everybody(terms) => terms,
        other => panic!("{other:?}"),
    }
}

const NOBODY: Shared = Shared::Nobody;

/// RFC 9111 §3.
#[test]
fn what_is_for_one_client_is_nobody_elses() {
    let fresh = ("cache-control", "public, max-age=60");
    for field in [
        ("cache-control", "No-Store"),
        ("cache-control", "private"),
        ("cache-control", "private=\"x\""),
        ("set-cookie", "a=b"),
        ("vary", "*"),
        ("vary", "accept, *"),
        ("content-type", "Text/Event-Stream; charset=utf-8"),
        ("content-range", "bytes 0-1/2"),
    ] {
        assert_eq!(of(200, &[fresh, field]), NOBODY, "{field:?}");
    }
    for code in [100, 101, 103, 206, 304] {
        assert_eq!(of(code, &[fresh]), NOBODY, "{code}");
    }
}

/// RFC 9111 §3, §4.2.2.
#[test]
fn silent_responses_are_stored_by_their_status() {
    for code in [200, 203, 204, 300, 301, 308, 404, 405, 410, 414] {
        assert_eq!(terms(of(code, &[])).lifetime, None, "{code}");
    }
    for code in [201, 202, 205, 302, 303, 307, 400, 401, 403, 451, 499] {
        assert_eq!(of(code, &[]), NOBODY, "{code}");
        assert_eq!(terms(of(code, &[("cache-control", "max-age=60")])).lifetime, Some(s(60)), "{code}");
        assert_eq!(terms(of(code, &[("cache-control", "public")])).lifetime, None, "{code}");
    }
    for value in ["must-revalidate", "no-cache", "stale-if-error=9"] {
        assert_eq!(of(302, &[("cache-control", value), ("etag", "\"a\"")]), NOBODY, "{value}");
    }
}

/// RFC 6585 §3 to §5.
#[test]
fn what_is_about_one_request_is_nobody_elses() {
    for code in [428, 429, 431] {
        assert_eq!(of(code, &[("cache-control", "public, max-age=60")]), NOBODY, "{code}");
    }
}

#[test]
fn silent_responses_live_as_the_operator_says() {
    let modified = date(-100);
    let fields = headers(&[("last-modified", &modified)]);
    let times = Times { asked: at(0), answered: at(0) };
    let by = |rules: &Rules, headers: &HeaderMap| shared(status(200), headers, Credentials::None, times, rules);
    assert_eq!(terms(by(&Rules::default(), &fields)).lifetime, None);
    assert_eq!(by(&Rules::default().respect_origin_only(), &fields), NOBODY);
    assert_eq!(terms(by(&Rules::default().heuristic(0.1), &fields)).lifetime, Some(s(10)));
    assert_eq!(by(&Rules::default().heuristic(0.1), &HeaderMap::new()), NOBODY);
    let explicit = headers(&[("cache-control", "max-age=60"), ("last-modified", &modified)]);
    for rules in [Rules::default().respect_origin_only(), Rules::default().heuristic(0.1)] {
        assert_eq!(terms(by(&rules, &explicit)).lifetime, Some(s(60)));
    }
}

/// RFC 9111 §4.2.3.
#[test]
fn the_age_with_which_it_arrives_is_off_its_lifetime() {
    let aged = [("cache-control", "max-age=60"), ("age", "20")];
    let terms_aged = terms(of(200, &aged));
    assert_eq!((terms_aged.lifetime, terms_aged.age), (Some(s(40)), s(20)));
    assert_eq!(of(200, &[("cache-control", "max-age=60"), ("age", "60")]), NOBODY);
    let silent = terms(of(200, &[("age", "20")]));
    assert_eq!((silent.lifetime, silent.age), (None, s(20)));
    let slow = Times { asked: at(0), answered: at(7) };
    let slow = shared(status(200), &headers(&aged), Credentials::None, slow, &Rules::default());
    assert_eq!(terms(slow).lifetime, Some(s(33)));
}

/// RFC 5861 §3, §4.
#[test]
fn stale_windows_count_from_the_end_of_freshness() {
    let windows = |fields: &[(&'static str, &str)]| {
        let terms = terms(of(200, fields));
        (terms.lifetime, terms.stale_while_revalidate, terms.stale_if_error)
    };
    let said = ("cache-control", "max-age=10, stale-while-revalidate=20, stale-if-error=30");
    assert_eq!(windows(&[said]), (Some(s(10)), Some(s(20)), Some(s(30))));
    assert_eq!(windows(&[said, ("age", "25")]), (Some(s(0)), Some(s(5)), Some(s(15))));
    assert_eq!(of(200, &[said, ("age", "40")]), NOBODY);
    assert_eq!(windows(&[("cache-control", "max-age=10")]), (Some(s(10)), None, None));
    assert_eq!(windows(&[("cache-control", "stale-if-error=x")]), (None, None, Some(s(0))));
}

/// RFC 9111 §4.2.4.
#[test]
fn some_forbid_to_serve_them_stale() {
    for forbids in ["must-revalidate", "proxy-revalidate", "s-maxage=60"] {
        let value = format!("max-age=60, stale-while-revalidate=9, stale-if-error=9, {forbids}");
        let terms = terms(control(&value));
        assert_eq!((terms.stale_while_revalidate, terms.stale_if_error), (Some(s(0)), Some(s(0))), "{forbids}");
    }
}

#[test]
fn what_is_never_fresh_is_not_stale_by_policy_while_it_is_refreshed() {
    let windows = |value| {
        let terms = terms(of(200, &[("cache-control", value), ("etag", "\"a\"")]));
        (terms.stale_while_revalidate, terms.stale_if_error)
    };
    assert_eq!(windows("max-age=0"), (Some(s(0)), None));
    assert_eq!(windows("max-age=0, stale-while-revalidate=9"), (Some(s(9)), None));
    assert_eq!(windows("max-age=1"), (None, None));
}

/// RFC 9111 §5.2.2.4, §4.3.
#[test]
fn what_is_validated_before_each_use_needs_a_validator() {
    let modified = date(-9);
    for value in
        ["no-cache", "no-cache, max-age=60", "no-cache=\"x\", s-maxage=60", "max-age=0", "s-maxage=0, max-age=9"]
    {
        assert_eq!(control(value), NOBODY, "{value}");
        for validator in [("etag", "W/\"a\""), ("last-modified", modified.as_str())] {
            let terms = terms(of(200, &[("cache-control", value), validator]));
            assert_eq!((terms.lifetime, terms.keep), (Some(s(0)), s(60)), "{value}");
        }
        assert_eq!(of(200, &[("cache-control", value), ("etag", "a")]), NOBODY, "{value}");
    }
    assert_eq!(of(200, &[("pragma", "no-cache")]), NOBODY);
    let pragma = terms(of(200, &[("pragma", "no-cache"), ("etag", "\"a\"")]));
    assert_eq!((pragma.lifetime, pragma.stale_if_error), (Some(s(0)), Some(s(0))));
    assert_eq!(terms(of(200, &[("pragma", "no-cache"), ("cache-control", "max-age=5")])).lifetime, Some(s(5)));
    assert_eq!(terms(control("max-age=5")).keep, s(0));
}

/// RFC 9111 §5.2.2.3.
#[test]
fn what_must_be_understood_is_stored_if_it_is() {
    let value = [("cache-control", "no-store, must-understand, max-age=60")];
    for code in [200, 302, 404, 426] {
        assert_eq!(terms(of(code, &value)).lifetime, Some(s(60)), "{code}");
    }
    for code in [299, 418, 499] {
        assert_eq!(of(code, &value), NOBODY, "{code}");
        assert_eq!(of(code, &[("cache-control", "must-understand, max-age=60")]), NOBODY, "{code}");
        assert_eq!(terms(of(code, &[("cache-control", "max-age=60")])).lifetime, Some(s(60)), "{code}");
    }
}

/// RFC 9111 §3.5.
#[test]
fn with_credentials_only_what_says_so_is_shared() {
    use Credentials::{Authorization, Cookie, None};
    for (value, open) in [
        ("", Open::Default),
        ("max-age=60", Open::Default),
        ("max-age=60, proxy-revalidate", Open::Default),
        ("max-age=60, must-revalidate", Open::Authorization),
        ("max-age=60, public", Open::Public),
        ("s-maxage=60", Open::Public),
        ("public", Open::Public),
    ] {
        let fields = [("cache-control", value)];
        assert_eq!(Open::of(&headers(&fields), &Rules::default()), open, "{value}");
        for (credentials, needed) in
            [(None, Open::Default), (Authorization, Open::Authorization), (Cookie, Open::Public)]
        {
            let shared = by(&Rules::default(), credentials, 200, &fields);
            match open >= needed {
                true => assert_eq!(terms(shared).open, open, "{value} {credentials:?}"),
                false => assert_eq!(shared, NOBODY, "{value} {credentials:?}"),
            }
        }
    }
    assert_eq!(by(&Rules::default(), Cookie, 200, &[("cache-control", "private")]), NOBODY);
    assert_eq!(by(&Rules::default(), Cookie, 302, &[]), NOBODY);
}

/// RFC 9111 §7.3.
#[test]
fn cookies_are_shared_only_where_rules_and_response_agree() {
    let rules = Rules::default().share_set_cookie();
    let with = |value| [("cache-control", value), ("set-cookie", "a=b")];
    for value in ["public, max-age=60", "s-maxage=60"] {
        assert_eq!(terms(by(&rules, Credentials::None, 200, &with(value))).lifetime, Some(s(60)), "{value}");
        assert_eq!(of(200, &with(value)), NOBODY, "{value}");
    }
    assert_eq!(by(&rules, Credentials::None, 200, &with("max-age=60")), NOBODY);
}

/// RFC 9213 §2.2.
#[test]
fn a_targeted_field_overrides_all_others() {
    let expired = [("cache-control", "private, no-store"), ("expires", "0"), ("pragma", "no-cache")];
    let all: Vec<_> = expired.into_iter().chain([("cdn-cache-control", "max-age=60")]).collect();
    assert_eq!(terms(of(200, &all)).lifetime, Some(s(60)));
    assert_eq!(of(200, &expired), NOBODY);
    let rules = Rules::default().targets([]);
    assert_eq!(by(&rules, Credentials::None, 200, &all), NOBODY);
    assert_eq!(of(200, &[("cache-control", "max-age=60"), ("cdn-cache-control", "no-store")]), NOBODY);
}

#[test]
fn server_errors_are_never_stored() {
    let whole = |credentials, fields: &[(&'static str, &str)]| {
        (500..600).all(|code| {
            let shared = by(&Rules::default(), credentials, code, fields);
            assert!(matches!(shared, Shared::Failure { .. }), "{code} {fields:?}");
            shared == Shared::Failure { whole: true }
        })
    };
    assert!(whole(Credentials::None, &[]));
    assert!(whole(Credentials::None, &[("cache-control", "max-age=60")]));
    assert!(whole(Credentials::Cookie, &[("cache-control", "public")]));
    assert!(!whole(Credentials::Cookie, &[]));
    for field in [
        ("cache-control", "private"),
        ("cache-control", "no-store"),
        ("cache-control", "no-cache"),
        ("set-cookie", "a=b"),
        ("vary", "accept"),
        ("pragma", "no-cache"),
    ] {
        assert!(!whole(Credentials::None, &[field]), "{field:?}");
    }
}

proptest! {
    /// Whatever else it says, and whatever status it has.
    #[test]
    fn no_combination_makes_a_private_response_shared(
        code in 100_u16..600, control in "[ -~]{0,40}", known in "(public|max-age=60|s-maxage=60|immutable|,){0,4}",
        age in "[ -~]{0,12}", expires in "[ -~]{0,30}", how in 0..4,
    ) {
        let mut fields = headers(&[("cache-control", &control), ("age", &age), ("expires", &expires)]);
        fields.append("cache-control", HeaderValue::from_str(&known).expect("a value"));
        let of = |fields: &HeaderMap| shared(status(code), fields, Credentials::None, NOW, &Rules::default());
        let _ = of(&fields);
        // A must-understand that the random part may hold would take the no-store away.
        let must_understand = Directives::of(&fields).must_understand;
        match how {
            0 => _ = fields.append("set-cookie", HeaderValue::from_static("a=b")),
            1 => _ = fields.append("vary", HeaderValue::from_static("a, *")),
            2 if !must_understand => _ = fields.append("cache-control", HeaderValue::from_static("no-store")),
            _ => _ = fields.append("cache-control", HeaderValue::from_static("private")),
        }
        let nobodys = [NOBODY, Shared::Failure { whole: false }];
        prop_assert!(nobodys.contains(&of(&fields)));
    }

    #[test]
    fn nothing_is_fresh_for_longer_than_it_says(
        lifetime in 0_u64..1000, age in 0_u64..1000, window in 0_u64..1000, etag: bool,
    ) {
        let value = format!("max-age={lifetime}, stale-while-revalidate={window}");
        let mut fields = headers(&[("cache-control", &value), ("age", &age.to_string())]);
        if etag {
            fields.insert("etag", HeaderValue::from_static("\"a\""));
        }
        let end = lifetime + window;
        match shared(status(200), &fields, Credentials::None, NOW, &Rules::default()) {
            Shared::Everybody(terms) => {
                prop_assert_eq!(terms.lifetime, Some(s(lifetime.saturating_sub(age))));
                let used = terms.lifetime.unwrap_or_default() + terms.stale_while_revalidate.unwrap_or_default();
                prop_assert_eq!(used, s(end.saturating_sub(age)));
            }
            other => prop_assert!(other == NOBODY && age >= end && !etag),
        }
    }
}
