//! What a request may have from a cache.

use crate::http::{
    directives::{Directives, pragma},
    rules::Rules,
};
use http::{HeaderMap, Method};
use std::time::Duration;

/// What is done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Asked {
    /// It goes to the origin as it is, for this reason (RFC 9211 §2.2).
    Forward(&'static str),
    /// It goes to the origin as it is, and an answer that is no error invalidates (RFC 9111 §4.4).
    Unsafe,
    /// It may be answered by the cache.
    Cache(Wish),
}

/// What a request to the cache wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) struct Wish {
    /// It wants the head alone.
    pub(in crate::http) head: bool,
    /// It may have the response already, and says which one.
    pub(in crate::http) conditional: bool,
    /// It wants a part.
    pub(in crate::http) range: bool,
    /// It fetches nothing for the cache.
    pub(in crate::http) look_only: Option<LookOnly>,
    pub(in crate::http) demand: Demand,
    pub(in crate::http) credentials: Credentials,
}

/// What becomes of a request that only looks, if nothing stored will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum LookOnly {
    /// RFC 9111 §5.2.1.7: `only-if-cached`.
    Or504,
    /// A range: cut from a complete response, or asked of the origin as it is. A part alone would not be stored.
    OrForward,
}

/// How fresh a stored response has to be (RFC 9111 §5.2.1). The default asks for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::http) struct Demand {
    pub(in crate::http) no_cache: bool,
    pub(in crate::http) max_age: Option<Duration>,
    pub(in crate::http) min_fresh: Duration,
    /// `None`: no staleness is accepted; `Duration::MAX`: any.
    pub(in crate::http) max_stale: Option<Duration>,
    /// RFC 5861 §4: for how long beyond its freshness it may stand in for an answer that failed.
    pub(in crate::http) stale_if_error: Duration,
}

/// What says who asks, ordered by how much a response must say to be shared nevertheless: see
/// [`Open`](super::storing::Open). With both, what holds for cookies does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::http) enum Credentials {
    None,
    Authorization,
    /// RFC 9111 does not know these; for an app they are no less than an `Authorization`.
    Cookie,
}

pub(in crate::http) fn asked(method: &Method, headers: &HeaderMap, has_body: bool, rules: &Rules) -> Asked {
    let head = match *method {
        Method::GET => false,
        Method::HEAD => true,
        // Safe (RFC 9110 §9.2.1), and not for a cache; a tunnel has no target that one would know.
        Method::OPTIONS | Method::TRACE | Method::CONNECT => return Asked::Forward("method"),
        // RFC 9111 §4.4: a method whose safety is not known counts as unsafe.
        _ => return Asked::Unsafe,
    };
    let said = Said::of(headers, rules);
    let heeded = said.control && rules.heed_requests;
    let directives = if heeded { Directives::of(headers) } else { Directives::default() };
    if has_body || directives.no_store || said.not_for_a_cache {
        return Asked::Forward("request");
    }
    // RFC 9110 §14.2: a range of anything but a GET is ignored.
    let range = !head && said.range;
    let look_only = match directives.only_if_cached {
        true => Some(LookOnly::Or504),
        false => range.then_some(LookOnly::OrForward),
    };
    let demand = Demand {
        no_cache: directives.no_cache || (said.pragma && rules.heed_requests && pragma(headers)),
        max_age: directives.max_age,
        min_fresh: directives.min_fresh.unwrap_or_default(),
        max_stale: directives.max_stale,
        stale_if_error: directives.stale_if_error.unwrap_or_default(),
    };
    let Said { conditional, credentials, .. } = said;
    Asked::Cache(Wish { head, conditional, range, look_only, demand, credentials })
}

/// Which fields of a request say something to a cache. Found in one pass: to look up each of them takes longer than all
/// else that there is to a hit.
struct Said {
    control: bool,
    pragma: bool,
    not_for_a_cache: bool,
    conditional: bool,
    range: bool,
    credentials: Credentials,
}

impl Said {
    fn of(headers: &HeaderMap, rules: &Rules) -> Self {
        let (mut control, mut pragma, mut not_for_a_cache) = (false, false, false);
        let (mut conditional, mut range, mut credentials) = (false, false, Credentials::None);
        for name in headers.keys() {
            match name.as_str() {
                "cache-control" => control = true,
                "pragma" => pragma = true,
                // RFC 9110 §9.3.1: a body on GET would be unkeyed. RFC 9111 §4.3.2: the origin evaluates these
                // preconditions. An upgrade is not a response to share. §5.2.1.5: nothing of it may be stored.
                "upgrade" | "if-match" | "if-unmodified-since" => not_for_a_cache = true,
                "if-none-match" | "if-modified-since" => conditional = true,
                "range" => range = true,
                "cookie" => credentials = Credentials::Cookie,
                "authorization" => credentials = credentials.max(Credentials::Authorization),
                _ => {}
            }
        }
        if rules.credentials.iter().any(|field| headers.contains_key(field)) {
            credentials = Credentials::Cookie;
        }
        Self { control, pragma, not_for_a_cache, conditional, range, credentials }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::kit::headers, *};
    use http::HeaderName;
    use proptest::prelude::*;

    fn ask(fields: &[(&'static str, &str)]) -> Asked {
        asked(&Method::GET, &headers(fields), false, &Rules::default())
    }

    fn wish(fields: &[(&'static str, &str)]) -> Wish {
        match ask(fields) {
            Asked::Cache(wish) => wish,
            other => panic!("{fields:?}: {other:?}"),
        }
    }

    const ANYTHING: Demand = Demand {
        no_cache: false,
        max_age: None,
        min_fresh: Duration::ZERO,
        max_stale: None,
        stale_if_error: Duration::ZERO,
    };

    /// RFC 9111 §4.4.
    #[test]
    fn methods_that_may_change_something_are_unsafe() {
        let by = |method: &str| {
            let method = Method::from_bytes(method.as_bytes()).expect("a method");
            asked(&method, &HeaderMap::new(), true, &Rules::default())
        };
        for method in ["POST", "PUT", "DELETE", "PATCH", "BREW", "get"] {
            assert_eq!(by(method), Asked::Unsafe, "{method}");
        }
        for method in ["OPTIONS", "TRACE", "CONNECT"] {
            assert_eq!(by(method), Asked::Forward("method"), "{method}");
        }
    }

    #[test]
    fn what_a_cache_cannot_answer_goes_to_the_origin() {
        for field in [
            ("if-match", "\"a\""),
            ("if-unmodified-since", "Sun, 06 Nov 1994 08:49:37 GMT"),
            ("upgrade", "websocket"),
            ("cache-control", "No-Store"),
        ] {
            assert_eq!(ask(&[field]), Asked::Forward("request"), "{field:?}");
        }
        assert_eq!(asked(&Method::GET, &HeaderMap::new(), true, &Rules::default()), Asked::Forward("request"));
    }

    /// RFC 9111 §5.2.1.
    #[test]
    fn request_directives_are_demands() {
        let s = Duration::from_secs;
        let nothing = Wish {
            head: false,
            conditional: false,
            range: false,
            look_only: None,
            demand: ANYTHING,
            credentials: Credentials::None,
        };
        assert_eq!((wish(&[]), Demand::default()), (nothing, ANYTHING));
        for (value, demand) in [
            ("no-cache", Demand { no_cache: true, ..ANYTHING }),
            ("max-age=0", Demand { max_age: Some(s(0)), ..ANYTHING }),
            ("max-age=5, min-fresh=3", Demand { max_age: Some(s(5)), min_fresh: s(3), ..ANYTHING }),
            ("max-stale", Demand { max_stale: Some(Duration::MAX), ..ANYTHING }),
            ("stale-if-error=9", Demand { stale_if_error: s(9), ..ANYTHING }),
            ("max-stale=9", Demand { max_stale: Some(s(9)), ..ANYTHING }),
        ] {
            assert_eq!(wish(&[("cache-control", value)]).demand, demand, "{value}");
        }
        assert_eq!(wish(&[("cache-control", "only-if-cached")]).look_only, Some(LookOnly::Or504));
    }

    /// RFC 9111 §5.4.
    #[test]
    fn pragma_counts_where_there_is_no_cache_control() {
        assert!(wish(&[("pragma", "x, No-Cache")]).demand.no_cache);
        assert!(!wish(&[("pragma", "no-cache"), ("cache-control", "max-age=5")]).demand.no_cache);
        assert!(!wish(&[("pragma", "no-cached")]).demand.no_cache);
    }

    #[test]
    fn ranges_look_only_and_of_a_head_they_are_ignored() {
        let range = ("range", "bytes=0-1");
        assert_eq!(wish(&[range]).look_only, Some(LookOnly::OrForward));
        assert_eq!(wish(&[range, ("cache-control", "only-if-cached")]).look_only, Some(LookOnly::Or504));
        let Asked::Cache(wish) = asked(&Method::HEAD, &headers(&[range]), false, &Rules::default()) else { panic!() };
        assert_eq!((wish.head, wish.look_only), (true, None));
    }

    #[test]
    fn cookies_are_the_stronger_credentials() {
        assert_eq!(wish(&[("authorization", "x")]).credentials, Credentials::Authorization);
        assert_eq!(wish(&[("cookie", "a=b")]).credentials, Credentials::Cookie);
        assert_eq!(wish(&[("cookie", "a=b"), ("authorization", "x")]).credentials, Credentials::Cookie);
    }

    #[test]
    fn an_operator_knows_of_other_credentials() {
        let rules = Rules::default().credential(HeaderName::from_static("x-api-key"));
        for (rules, expected) in [(Rules::default(), Credentials::None), (rules, Credentials::Cookie)] {
            let asked = asked(&Method::GET, &headers(&[("x-api-key", "x")]), false, &rules);
            let Asked::Cache(wish) = asked else { panic!() };
            assert_eq!(wish.credentials, expected);
        }
    }

    #[test]
    fn request_directives_can_be_ignored() {
        let rules = Rules::default().ignore_request_directives();
        for value in ["no-cache", "no-store", "max-age=0", "min-fresh=9", "max-stale", "only-if-cached"] {
            let fields = headers(&[("cache-control", value)]);
            let Asked::Cache(wish) = asked(&Method::GET, &fields, false, &rules) else { panic!("{value}") };
            assert_eq!((wish.demand, wish.look_only), (ANYTHING, None), "{value}");
        }
        let fields = headers(&[("pragma", "no-cache")]);
        let Asked::Cache(wish) = asked(&Method::GET, &fields, false, &rules) else { panic!() };
        assert_eq!(wish.demand, ANYTHING);
    }

    proptest! {
        #[test]
        fn a_no_store_is_never_for_the_cache(control in "[ -!#-\\[\\]-~]{0,40}", pragma in "[ -~]{0,20}", head: bool) {
            let fields = headers(&[("cache-control", &format!("{control},no-store")), ("pragma", &pragma)]);
            let method = if head { Method::HEAD } else { Method::GET };
            prop_assert_eq!(asked(&method, &fields, false, &Rules::default()), Asked::Forward("request"));
        }
    }
}
