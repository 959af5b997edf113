use super::*;
use crate::http::semantics::kit::{at, date, headers, status};
use http::HeaderValue;
use proptest::prelude::*;

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const NOW: Times = Times { request_time: std::time::UNIX_EPOCH, response_time: std::time::UNIX_EPOCH };

fn by(options: &HttpOptions, credentials: Credentials, code: u16, fields: &[(&'static str, &str)]) -> Storable {
    storable(status(code), &headers(fields), credentials, NOW, options)
}

fn of(code: u16, fields: &[(&'static str, &str)]) -> Storable {
    by(&HttpOptions::default(), Credentials::None, code, fields)
}

fn control(value: &str) -> Storable {
    of(200, &[("cache-control", value)])
}

fn terms(storable: Storable) -> StorageTerms {
    match storable {
        Storable::Shared(terms) => terms,
        other => panic!("{other:?}"),
    }
}

/// Reports whether waiters get all of an error that is not stored.
fn is_whole(storable: Storable) -> bool {
    match storable {
        Storable::WaitersOnly(_) => true,
        Storable::Private(_) => false,
        other => panic!("{other:?}"),
    }
}

/// RFC 9111 §3.
#[test]
fn private_and_partial_responses_are_not_shared() {
    let fresh = ("cache-control", "public, max-age=60");
    for (name, value, reason) in [
        ("cache-control", "No-Store", Uncached::NoStore),
        ("cache-control", "private", Uncached::Private),
        ("cache-control", "private=\"x\"", Uncached::Private),
        ("set-cookie", "a=b", Uncached::SetCookie),
        ("vary", "*", Uncached::Vary),
        ("vary", "accept, *", Uncached::Vary),
        ("content-type", "Text/Event-Stream; charset=utf-8", Uncached::EventStream),
        ("content-range", "bytes 0-1/2", Uncached::Partial),
    ] {
        assert_eq!(of(200, &[fresh, (name, value)]), Storable::Private(reason), "{name}: {value}");
    }
    for code in [100, 101, 103, 206, 304] {
        assert_eq!(of(code, &[fresh]), Storable::Private(Uncached::Partial), "{code}");
    }
}

/// RFC 9111 §3, §4.2.2.
#[test]
fn response_without_lifetime_is_stored_by_its_status() {
    for code in [200, 203, 204, 300, 301, 308, 404, 405, 410, 414, 501] {
        assert_eq!(terms(of(code, &[])).lifetime, None, "{code}");
    }
    for code in [201, 202, 205, 302, 303, 307, 400, 401, 403, 451, 499] {
        match of(code, &[]) {
            Storable::Private(Uncached::Status) => assert!(code < 400, "{code}"),
            storable => assert!(code >= 400 && is_whole(storable), "{code}"),
        }
        assert_eq!(terms(of(code, &[("cache-control", "max-age=60")])).lifetime, Some(s(60)), "{code}");
        assert_eq!(terms(of(code, &[("cache-control", "public")])).lifetime, None, "{code}");
    }
    for value in ["must-revalidate", "no-cache", "stale-if-error=9"] {
        let storable = of(302, &[("cache-control", value), ("etag", "\"a\"")]);
        assert_eq!(storable, Storable::Private(Uncached::Status), "{value}");
    }
}

/// RFC 6585 §3 to §5, RFC 9110 §15.5.13 to §15.5.18. Of a rate limit the waiters get the status.
#[test]
fn status_about_one_request_is_never_stored() {
    for (code, whole) in
        [(412, true), (416, true), (417, true), (428, true), (431, true), (408, false), (425, false), (429, false)]
    {
        for control in ["", "public, max-age=60"] {
            assert_eq!(is_whole(of(code, &[("cache-control", control)])), whole, "{code} {control}");
        }
    }
}

#[test]
fn client_error_that_is_private_is_not_shared() {
    for (name, value, reason) in [
        ("cache-control", "private", Uncached::Private),
        ("cache-control", "no-store", Uncached::NoStore),
        ("set-cookie", "a=b", Uncached::SetCookie),
        ("vary", "*", Uncached::Vary),
    ] {
        assert_eq!(of(400, &[(name, value)]), Storable::Private(reason), "{name}: {value}");
    }
    assert_eq!(of(400, &[("cache-control", "no-cache")]), Storable::Private(Uncached::Status));
}

#[test]
fn response_without_lifetime_follows_the_settings() {
    let modified = date(-100);
    let fields = headers(&[("last-modified", &modified)]);
    let times = Times { request_time: at(0), response_time: at(0) };
    let by =
        |options: &HttpOptions, headers: &HeaderMap| storable(status(200), headers, Credentials::None, times, options);
    assert_eq!(terms(by(&HttpOptions::default(), &fields)).lifetime, None);
    let unknown = Storable::Private(Uncached::NoFreshness);
    assert_eq!(by(&HttpOptions::default().require_explicit_freshness(), &fields), unknown);
    assert_eq!(terms(by(&HttpOptions::default().heuristic_freshness(0.1), &fields)).lifetime, Some(s(10)));
    assert_eq!(by(&HttpOptions::default().heuristic_freshness(0.1), &HeaderMap::new()), unknown);
    let explicit = headers(&[("cache-control", "max-age=60"), ("last-modified", &modified)]);
    for options in
        [HttpOptions::default().require_explicit_freshness(), HttpOptions::default().heuristic_freshness(0.1)]
    {
        assert_eq!(terms(by(&options, &explicit)).lifetime, Some(s(60)));
    }
}

/// RFC 9111 §4.2.3.
#[test]
fn initial_age_shortens_the_lifetime() {
    let aged = [("cache-control", "max-age=60"), ("age", "20")];
    let terms_aged = terms(of(200, &aged));
    assert_eq!((terms_aged.lifetime, terms_aged.age), (Some(s(40)), s(20)));
    assert_eq!(of(200, &[("cache-control", "max-age=60"), ("age", "60")]), Storable::Private(Uncached::Expired));
    let silent = terms(of(200, &[("age", "20")]));
    assert_eq!((silent.lifetime, silent.age), (None, s(20)));
    let slow = Times { request_time: at(0), response_time: at(7) };
    let slow = storable(status(200), &headers(&aged), Credentials::None, slow, &HttpOptions::default());
    assert_eq!(terms(slow).lifetime, Some(s(33)));
}

/// RFC 5861 §3, §4.
#[test]
fn stale_windows_count_from_the_end_of_freshness() {
    let windows = |fields: &[(&'static str, &str)]| {
        let terms = terms(of(200, fields));
        (terms.lifetime, terms.stale_while_revalidate, terms.stale_if_error)
    };
    let stated = ("cache-control", "max-age=10, stale-while-revalidate=20, stale-if-error=30");
    assert_eq!(windows(&[stated]), (Some(s(10)), Some(s(20)), Some(s(30))));
    assert_eq!(windows(&[stated, ("age", "25")]), (Some(s(0)), Some(s(5)), Some(s(15))));
    assert_eq!(of(200, &[stated, ("age", "40")]), Storable::Private(Uncached::Expired));
    assert_eq!(windows(&[("cache-control", "max-age=10")]), (Some(s(10)), None, None));
    assert_eq!(windows(&[("cache-control", "stale-if-error=x")]), (None, None, Some(s(0))));
}

/// RFC 9111 §4.2.4.
#[test]
fn revalidate_directives_forbid_serving_stale() {
    for forbids in ["must-revalidate", "proxy-revalidate", "s-maxage=60"] {
        let value = format!("max-age=60, stale-while-revalidate=9, stale-if-error=9, {forbids}");
        let terms = terms(control(&value));
        assert_eq!((terms.stale_while_revalidate, terms.stale_if_error), (Some(s(0)), Some(s(0))), "{forbids}");
    }
}

#[test]
fn zero_lifetime_disables_policy_stale_while_revalidate() {
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
fn no_cache_response_needs_a_validator_to_be_stored() {
    let modified = date(-9);
    for value in
        ["no-cache", "no-cache, max-age=60", "no-cache=\"x\", s-maxage=60", "max-age=0", "s-maxage=0, max-age=9"]
    {
        assert_eq!(control(value), Storable::Private(Uncached::Expired), "{value}");
        for validator in [("etag", "W/\"a\""), ("last-modified", modified.as_str())] {
            let terms = terms(of(200, &[("cache-control", value), validator]));
            assert_eq!((terms.lifetime, terms.retain_for), (Some(s(0)), s(60)), "{value}");
        }
        let invalid = of(200, &[("cache-control", value), ("etag", "a")]);
        assert_eq!(invalid, Storable::Private(Uncached::Expired), "{value}");
    }
    assert_eq!(of(200, &[("pragma", "no-cache")]), Storable::Private(Uncached::Expired));
    let pragma = terms(of(200, &[("pragma", "no-cache"), ("etag", "\"a\"")]));
    assert_eq!((pragma.lifetime, pragma.stale_if_error), (Some(s(0)), Some(s(0))));
    assert_eq!(terms(of(200, &[("pragma", "no-cache"), ("cache-control", "max-age=5")])).lifetime, Some(s(5)));
    assert_eq!(terms(control("max-age=5")).retain_for, s(0));
}

/// RFC 9111 §5.2.2.3.
#[test]
fn must_understand_stores_only_understood_statuses() {
    let value = [("cache-control", "no-store, must-understand, max-age=60")];
    for code in [200, 302, 404, 426] {
        assert_eq!(terms(of(code, &value)).lifetime, Some(s(60)), "{code}");
    }
    for code in [299, 418, 499] {
        let refused = Storable::Private(Uncached::Status);
        assert_eq!(of(code, &value), refused, "{code}");
        assert_eq!(of(code, &[("cache-control", "must-understand, max-age=60")]), refused, "{code}");
        assert_eq!(terms(of(code, &[("cache-control", "max-age=60")])).lifetime, Some(s(60)), "{code}");
    }
}

#[test]
fn sharing_comes_from_the_deciding_field() {
    let head = headers(&[("cache-control", "max-age=1, must-revalidate"), ("cdn-cache-control", "public")]);
    let by_default = Sharing::of(&head, &HttpOptions::default());
    let untargeted = Sharing::of(&head, &HttpOptions::default().targeted_fields([]));
    assert_eq!([by_default, untargeted].map(|it| it.auth_sharing), [AuthSharing::Public, AuthSharing::Authorization]);
}

/// RFC 9111 §3.5.
#[test]
fn credentials_share_only_responses_that_permit_it() {
    use Credentials::{Authorization, Cookie, Field, None, PrivateIf};
    for (value, auth_sharing) in [
        ("", AuthSharing::Default),
        ("max-age=60", AuthSharing::Default),
        ("max-age=60, proxy-revalidate", AuthSharing::Default),
        ("max-age=60, must-revalidate", AuthSharing::Authorization),
        ("max-age=60, public", AuthSharing::Public),
        ("s-maxage=60", AuthSharing::Public),
        ("public", AuthSharing::Public),
    ] {
        let fields = [("cache-control", value)];
        let stated = Sharing::of(&headers(&fields), &HttpOptions::default());
        assert_eq!(stated.auth_sharing, auth_sharing, "{value}");
        for (credentials, needed) in [
            (None, AuthSharing::Default),
            (Authorization, AuthSharing::Authorization),
            (Field, AuthSharing::Public),
            (Cookie, AuthSharing::Public),
            (PrivateIf, AuthSharing::Public),
        ] {
            let storable = by(&HttpOptions::default(), credentials, 200, &fields);
            match auth_sharing >= needed {
                true => assert_eq!(terms(storable).sharing.auth_sharing, auth_sharing, "{value} {credentials:?}"),
                false => {
                    let reason = credentials.uncached().expect("they are credentials");
                    assert_eq!(storable, Storable::Private(reason), "{value} {credentials:?}");
                }
            }
        }
    }
    assert_eq!(
        by(&HttpOptions::default(), Cookie, 200, &[("cache-control", "private")]),
        Storable::Private(Uncached::Private)
    );
    assert_eq!(by(&HttpOptions::default(), Cookie, 302, &[]), Storable::Private(Uncached::Status));
}

/// RFC 9111 §7.3.
#[test]
fn responses_with_set_cookie_are_private() {
    for value in ["public, max-age=60", "s-maxage=60", "max-age=60"] {
        let fields = [("cache-control", value), ("set-cookie", "a=b")];
        assert_eq!(of(200, &fields), Storable::Private(Uncached::SetCookie), "{value}");
    }
}

/// RFC 9213 §2.2.
#[test]
fn a_targeted_field_overrides_all_others() {
    let expired = [("cache-control", "private, no-store"), ("expires", "0"), ("pragma", "no-cache")];
    let all: Vec<_> = expired.into_iter().chain([("cdn-cache-control", "max-age=60")]).collect();
    assert_eq!(terms(of(200, &all)).lifetime, Some(s(60)));
    assert_eq!(of(200, &expired), Storable::Private(Uncached::NoStore));
    let options = HttpOptions::default().targeted_fields([]);
    assert_eq!(by(&options, Credentials::None, 200, &all), Storable::Private(Uncached::NoStore));
    let targeted = of(200, &[("cache-control", "max-age=60"), ("cdn-cache-control", "no-store")]);
    assert_eq!(targeted, Storable::Private(Uncached::NoStore));
}

/// RFC 9111 §3: `public` alone would suffice, but gives no lifetime.
#[test]
fn server_error_is_stored_only_with_a_lifetime() {
    let whole = |credentials, fields: &[(&'static str, &str)]| {
        (500..600)
            .filter(|code| *code != 501)
            .all(|code| is_whole(by(&HttpOptions::default(), credentials, code, fields)))
    };
    assert!(whole(Credentials::None, &[]));
    assert!(whole(Credentials::None, &[("cache-control", "public"), ("etag", "\"a\"")]));
    assert!(whole(Credentials::None, &[("cache-control", "public, max-age=0, stale-if-error=60"), ("etag", "\"a\"")]));
    assert!(!whole(Credentials::None, &[("cache-control", "max-age=0, stale-if-error=60"), ("etag", "\"a\"")]));
    assert!(whole(Credentials::None, &[("cache-control", "max-age=60"), ("age", "60")]));
    assert!(whole(Credentials::Cookie, &[("cache-control", "public")]));
    assert!(!whole(Credentials::Cookie, &[]));
    assert!(!whole(Credentials::Cookie, &[("cache-control", "max-age=60")]));
    let expires = date(60);
    for field in [("cache-control", "max-age=60"), ("cache-control", "s-maxage=60"), ("expires", &expires)] {
        let stored = terms(of(503, &[field, ("etag", "\"a\""), ("date", &date(0))]));
        assert_eq!((stored.lifetime, stored.stale_if_error, stored.retain_for), (Some(s(60)), Some(s(0)), s(0)));
        assert_eq!(of(503, &[field, ("content-range", "bytes 0-1/2")]), Storable::Private(Uncached::Partial));
    }
    let stated = terms(of(503, &[("cache-control", "max-age=5, stale-while-revalidate=7")]));
    assert_eq!(stated.stale_while_revalidate, Some(s(7)));
    for field in [
        ("cache-control", "private"),
        ("cache-control", "no-store"),
        ("cache-control", "no-cache"),
        ("set-cookie", "a=b"),
        ("vary", "*"),
        ("pragma", "no-cache"),
    ] {
        assert!(!whole(Credentials::None, &[field]), "{field:?}");
    }
}

proptest! {
    /// Holds for every status and for every combination with other directives.
    #[test]
    fn no_combination_makes_a_private_response_shared(
        code in 100_u16..600, control in "[ -~]{0,40}", known in "(public|max-age=60|s-maxage=60|immutable|,){0,4}",
        age in "[ -~]{0,12}", expires in "[ -~]{0,30}", how in 0..4,
    ) {
        let mut fields = headers(&[("cache-control", &control), ("age", &age), ("expires", &expires)]);
        fields.append("cache-control", HeaderValue::from_str(&known).expect("a value"));
        let of = |fields: &HeaderMap| storable(status(code), fields, Credentials::None, NOW, &HttpOptions::default());
        let _ = of(&fields);
        // A must-understand in the random part would cancel the no-store.
        let must_understand = Directives::of(&fields).must_understand;
        match how {
            0 => _ = fields.append("set-cookie", HeaderValue::from_static("a=b")),
            1 => _ = fields.append("vary", HeaderValue::from_static("a, *")),
            2 if !must_understand => _ = fields.append("cache-control", HeaderValue::from_static("no-store")),
            _ => _ = fields.append("cache-control", HeaderValue::from_static("private")),
        }
        prop_assert!(matches!(of(&fields), Storable::Private(_)));
    }

    #[test]
    fn response_is_never_fresh_longer_than_it_states(
        lifetime in 0_u64..1000, age in 0_u64..1000, window in 0_u64..1000, etag: bool,
    ) {
        let value = format!("max-age={lifetime}, stale-while-revalidate={window}");
        let mut fields = headers(&[("cache-control", &value), ("age", &age.to_string())]);
        if etag {
            fields.insert("etag", HeaderValue::from_static("\"a\""));
        }
        let end = lifetime + window;
        match storable(status(200), &fields, Credentials::None, NOW, &HttpOptions::default()) {
            Storable::Shared(terms) => {
                prop_assert_eq!(terms.lifetime, Some(s(lifetime.saturating_sub(age))));
                let used = terms.lifetime.unwrap_or_default() + terms.stale_while_revalidate.unwrap_or_default();
                prop_assert_eq!(used, s(end.saturating_sub(age)));
            }
            other => prop_assert!(other == Storable::Private(Uncached::Expired) && age >= end && !etag),
        }
    }
}
