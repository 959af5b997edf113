//! What a request accepts from the cache (RFC 9111 §5.2.1).

use super::{
    forwarded,
    request_fields::{self, FieldKind},
};
use crate::{config::http::HttpOptions, http::directives::Directives, uncached::Uncached};
use http::{HeaderMap, HeaderName, Method, header};
use std::{ptr, time::Duration};

/// The way a request is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Disposition {
    /// Forwarded to the origin unchanged, for this reason.
    Forward(Uncached),
    /// Forwarded to the origin unchanged. A response that is not an error invalidates the target (RFC 9111 §4.4).
    Unsafe,
    /// The cache may answer it.
    Cache(CacheRequest),
}

/// The part of a request that concerns the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::http) struct CacheRequest {
    /// HEAD: it asks for the head only.
    pub(in crate::http) head: bool,
    /// It has conditions, which the response is to be compared with.
    pub(in crate::http) conditional: bool,
    /// It asks for a range.
    pub(in crate::http) range: bool,
    /// Set if it must not fetch for the cache. If nothing suitable is stored, the answer is a 504 for `only-if-cached`
    /// (RFC 9111 §5.2.1.7). For an upgrade the request is forwarded to the origin unchanged, and a response that switches
    /// protocols is for one client.
    pub(in crate::http) lookup_only: Option<Uncached>,
    pub(in crate::http) directives: RequestDirectives,
    pub(in crate::http) credentials: Credentials,
    pub(in crate::http) forwarded: ForwardedFields,
    /// It has fields that are not known to be harmless.
    pub(in crate::http) has_others: bool,
}

impl CacheRequest {
    /// Reports whether nothing in the head tells its user apart.
    pub(in crate::http) fn is_anonymous(&self) -> bool {
        self.credentials == Credentials::None && !self.selects(false)
    }

    /// Reports whether it has fields that select its response without a `Vary`.
    pub(in crate::http) fn selects(&self, for_everyone: bool) -> bool {
        self.forwarded == ForwardedFields::Contradicting || self.has_others && !for_everyone
    }

    /// Reports whether this field is one of them: unless the response is for all clients, each field that is not
    /// harmless and not in the key. If the fields of proxies contradict the target, all of them count, for every
    /// response.
    pub(in crate::http) fn selects_by(&self, name: &HeaderName, for_everyone: bool, options: &HttpOptions) -> bool {
        match request_fields::kind(name) {
            FieldKind::Other => !for_everyone && !options.is_harmless(name),
            FieldKind::ForwardedProto | FieldKind::Forwarded(_) => self.forwarded == ForwardedFields::Contradicting,
            _ => false,
        }
    }
}

/// A client's request: its head, and what of it concerns the cache.
#[derive(Clone, Copy)]
pub(in crate::http) struct ClientRequest<'a> {
    pub(in crate::http) cache_request: &'a CacheRequest,
    pub(in crate::http) headers: &'a HeaderMap,
    pub(in crate::http) options: &'a HttpOptions,
}

/// The fields of a request with which a proxy repeats its target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::http) enum ForwardedFields {
    #[default]
    None,
    /// One `X-Forwarded-Proto` with this scheme, and no other.
    Scheme(&'static str),
    /// Fields that are to be compared with the target and with each other.
    Others,
    /// Fields that contradict the target or each other.
    Contradicting,
}

/// The freshness that a request demands of a stored response (RFC 9111 §5.2.1). The default demands nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::http) struct RequestDirectives {
    pub(in crate::http) no_cache: bool,
    pub(in crate::http) max_age: Option<Duration>,
    pub(in crate::http) min_fresh: Duration,
    /// Otherwise a response that arrived less than [`RELOAD_AFTER`] ago meets every demand for a newer one.
    pub(in crate::http) honoured: bool,
}

impl RequestDirectives {
    /// Reports whether a response is served only after a validation. It has this age, arrived `resident_time` ago, and
    /// remains fresh for the time that is `left`.
    pub(in crate::http) fn reject(self, age: Duration, resident_time: Duration, left: Duration) -> bool {
        // RFC 9111 §5.2.1.1 permits an age equal to max-age. It is validated here, which is what a client with max-age=0
        // wants. A request with max-age accepts nothing stale.
        let is_too_old = |most: Duration| age >= most || left.is_zero();
        let is_recent = !self.honoured && resident_time < RELOAD_AFTER;
        // §5.2.1.4, and §5.2.1.3: it must stay fresh for at least this long.
        !is_recent && (self.no_cache || left < self.min_fresh || self.max_age.is_some_and(is_too_old))
    }
}

/// The credentials of a request, ordered by how explicitly a response must permit sharing: see [`AuthSharing`]. With
/// both kinds, the rule for cookies holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::http) enum Credentials {
    #[default]
    None,
    Authorization,
    /// A field that the operator names. RFC 9111 does not treat the following as credentials, but an application does.
    Field,
    Cookie,
    /// The head is private to one user, as [`HttpOptions::private_if`] says.
    PrivateIf,
}

impl Credentials {
    /// Returns why a response that does not permit sharing among such requests is not stored.
    pub(in crate::http) fn uncached(self) -> Option<Uncached> {
        match self {
            Self::None => None,
            Self::Authorization => Some(Uncached::Authorization),
            Self::Field => Some(Uncached::CredentialField),
            Self::Cookie => Some(Uncached::Cookie),
            Self::PrivateIf => Some(Uncached::PrivateIf),
        }
    }
}

/// The extent to which a response permits sharing among requests with credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::http) enum AuthSharing {
    /// Not at all: it is for requests without credentials.
    Default,
    /// Among requests with `Authorization`: `must-revalidate` with `max-age`. RFC 9111 §3.5 takes `must-revalidate`
    /// alone for permission. Here the lifetime must be stated, so that no default lifetime shares what one client was
    /// shown.
    Authorization,
    /// Among all requests: `public` or `s-maxage`.
    Public,
}

impl AuthSharing {
    pub(super) fn of_directives(directives: &Directives) -> Self {
        if directives.public || directives.s_maxage.is_some() {
            Self::Public
        } else if directives.must_revalidate && directives.max_age.is_some() {
            Self::Authorization
        } else {
            Self::Default
        }
    }

    /// Reports whether the response to one request with such credentials may be given to another.
    pub(in crate::http) fn admits(self, credentials: Credentials) -> bool {
        match credentials {
            Credentials::None => true,
            Credentials::Authorization => self >= Self::Authorization,
            Credentials::Field | Credentials::Cookie | Credentials::PrivateIf => self >= Self::Public,
        }
    }
}

/// Decides from the head of a request how it is handled.
pub(in crate::http) fn disposition(
    method: &Method,
    headers: &HeaderMap,
    has_body: bool,
    options: &HttpOptions,
) -> Disposition {
    let head = match *method {
        Method::GET => false,
        Method::HEAD => true,
        // Safe (RFC 9110 §9.2.1), but not cacheable. A tunnel (CONNECT) has no target URI.
        Method::OPTIONS | Method::TRACE | Method::CONNECT => return Disposition::Forward(Uncached::Method),
        // RFC 9111 §4.4: a method of unknown safety counts as unsafe.
        _ => return Disposition::Unsafe,
    };
    // RFC 9110 §9.3.1: a body on GET is not part of the key.
    if has_body {
        return Disposition::Forward(Uncached::RequestBody);
    }
    let mut cache_request = CacheRequest { head, ..CacheRequest::default() };
    let control = cache_request.read(headers, options);
    let honoured = options.honour_request_directives;
    // RFC 9111 §5.2.1.5: the layer stores nothing for a no-store. With only-if-cached the origin is not asked at all.
    if control.no_store && honoured && !control.only_if_cached {
        return Disposition::Forward(Uncached::RequestNoStore);
    }
    // The response to an upgrade replaces no stored one, so the next request with it would demand a newer one again.
    let demands_newer = honoured || control.only_if_cached || cache_request.lookup_only.is_none();
    if control.only_if_cached {
        cache_request.lookup_only = Some(Uncached::OnlyIfCached);
    }
    if demands_newer {
        let no_cache = control.no_cache || control.no_store;
        let (max_age, min_fresh) = (control.max_age, control.min_fresh.unwrap_or_default());
        // §5.2.1: a cache need not implement these directives.
        cache_request.directives = RequestDirectives { no_cache, max_age, min_fresh, honoured };
    }
    Disposition::Cache(cache_request)
}

impl CacheRequest {
    /// Reads the fields, and returns the directives. PERF: in one pass, because looking up each field takes longer than
    /// the rest of a hit.
    fn read(&mut self, headers: &HeaderMap, options: &HttpOptions) -> Directives {
        let mut control = Directives::default();
        for name in headers.keys() {
            match request_fields::kind(name) {
                FieldKind::Control => control = Directives::of(headers),
                FieldKind::Upgrade if is_h2c(headers) => {}
                FieldKind::Upgrade => self.lookup_only = Some(Uncached::Upgrade),
                FieldKind::Conditional => self.conditional = true,
                // RFC 9110 §14.2: a range is ignored unless the method is GET.
                FieldKind::Range => self.range = !self.head,
                FieldKind::Authorization => self.credentials = self.credentials.max(Credentials::Authorization),
                FieldKind::Cookie if options.harmless_fields.contains(name) => {}
                FieldKind::Cookie => self.credentials = Credentials::Cookie,
                FieldKind::ProxyAuthorization => self.credentials = self.credentials.max(Credentials::Field),
                FieldKind::ForwardedProto => self.forwarded = self.forwarded.with_proto(headers, name),
                FieldKind::Forwarded(_) => self.forwarded = ForwardedFields::Others,
                FieldKind::Other => self.has_others = self.has_others || !options.is_harmless(name),
                FieldKind::Harmless => {}
            }
        }
        if options.credential_fields.iter().any(|field| headers.contains_key(field)) {
            self.credentials = self.credentials.max(Credentials::Field);
        }
        control
    }
}

/// Reports whether the request offers HTTP/2 without TLS, and no other upgrade. Some clients of HTTP/1.1 offer it with
/// every request, and no service under a layer can accept.
fn is_h2c(headers: &HeaderMap) -> bool {
    headers.get_all(header::UPGRADE).iter().all(|line| line.as_bytes().trim_ascii().eq_ignore_ascii_case(b"h2c"))
}

impl ForwardedFields {
    /// Adds an `X-Forwarded-Proto`. PERF: proxies write their fields first, so that a search takes 60 instructions; a
    /// lookup has to hash the name and takes 230.
    fn with_proto(self, headers: &HeaderMap, name: &HeaderName) -> Self {
        let mut lines = headers.iter();
        let scheme = lines.find(|(other, _)| ptr::eq(*other, name));
        let scheme = scheme.and_then(|(_, value)| forwarded::scheme(value.as_bytes()));
        let is_repeated = lines.next().is_some_and(|(other, _)| ptr::eq(other, name));
        match (self, scheme) {
            (Self::None, Some(scheme)) if !is_repeated => Self::Scheme(scheme),
            _ => Self::Others,
        }
    }
}

const RELOAD_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::{super::kit::headers, *};
    use proptest::prelude::*;

    fn disposition_of(fields: &[(&'static str, &str)]) -> Disposition {
        disposition(&Method::GET, &headers(fields), false, &HttpOptions::default())
    }

    fn cache_request(fields: &[(&'static str, &str)]) -> CacheRequest {
        match disposition_of(fields) {
            Disposition::Cache(cache_request) => cache_request,
            other => panic!("{fields:?}: {other:?}"),
        }
    }

    const ANYTHING: RequestDirectives =
        RequestDirectives { no_cache: false, max_age: None, min_fresh: Duration::ZERO, honoured: false };

    /// RFC 9111 §4.4.
    #[test]
    fn changing_and_unknown_methods_are_unsafe() {
        let by = |method: &str| {
            let method = Method::from_bytes(method.as_bytes()).expect("a method");
            disposition(&method, &HeaderMap::new(), true, &HttpOptions::default())
        };
        for method in ["POST", "PUT", "DELETE", "PATCH", "BREW", "get"] {
            assert_eq!(by(method), Disposition::Unsafe, "{method}");
        }
        for method in ["OPTIONS", "TRACE", "CONNECT"] {
            assert_eq!(by(method), Disposition::Forward(Uncached::Method), "{method}");
        }
    }

    #[test]
    fn request_that_a_cache_cannot_answer_is_forwarded() {
        let honouring = HttpOptions::default().honour_request_directives();
        let no_store = headers(&[("cache-control", "No-Store")]);
        assert_eq!(
            disposition(&Method::GET, &no_store, false, &honouring),
            Disposition::Forward(Uncached::RequestNoStore)
        );
        assert_eq!(
            disposition(&Method::GET, &HeaderMap::new(), true, &HttpOptions::default()),
            Disposition::Forward(Uncached::RequestBody)
        );
    }

    /// RFC 9111 §5.2.1.
    #[test]
    fn request_directives_are_parsed() {
        let s = Duration::from_secs;
        let nothing = CacheRequest {
            head: false,
            conditional: false,
            range: false,
            lookup_only: None,
            directives: ANYTHING,
            credentials: Credentials::None,
            forwarded: ForwardedFields::None,
            has_others: false,
        };
        assert_eq!(cache_request(&[]), nothing);
        for (value, directives) in [
            ("no-cache", RequestDirectives { no_cache: true, ..ANYTHING }),
            ("No-Store", RequestDirectives { no_cache: true, ..ANYTHING }),
            ("max-age=0", RequestDirectives { max_age: Some(s(0)), ..ANYTHING }),
            ("max-age=5, min-fresh=3", RequestDirectives { max_age: Some(s(5)), min_fresh: s(3), ..ANYTHING }),
            ("max-stale=9, stale-if-error=9", ANYTHING),
        ] {
            assert_eq!(cache_request(&[("cache-control", value)]).directives, directives, "{value}");
        }
        assert_eq!(cache_request(&[("cache-control", "only-if-cached")]).lookup_only, Some(Uncached::OnlyIfCached));
    }

    /// RFC 9111 §5.4.
    #[test]
    fn pragma_counts_only_without_cache_control() {
        assert!(cache_request(&[("pragma", "x, No-Cache")]).directives.no_cache);
        assert!(!cache_request(&[("pragma", "no-cache"), ("cache-control", "max-age=5")]).directives.no_cache);
        assert!(!cache_request(&[("pragma", "no-cached")]).directives.no_cache);
    }

    #[test]
    fn range_is_ignored_for_head() {
        let range = ("range", "bytes=0-1");
        assert!(cache_request(&[range]).range);
        let Disposition::Cache(cache_request) =
            disposition(&Method::HEAD, &headers(&[range]), false, &HttpOptions::default())
        else {
            panic!()
        };
        assert_eq!((cache_request.head, cache_request.range), (true, false));
    }

    #[test]
    fn upgrade_only_looks_up_unless_it_is_h2c_alone() {
        let lookup_only = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            values.iter().for_each(|value| _ = headers.append("upgrade", value.parse().expect("a value")));
            match disposition(&Method::GET, &headers, false, &HttpOptions::default()) {
                Disposition::Cache(cache_request) => cache_request.lookup_only,
                other => panic!("{values:?}: {other:?}"),
            }
        };
        for (values, expected) in [
            (&["h2c"][..], None),
            (&[" H2C"], None),
            (&["websocket"], Some(Uncached::Upgrade)),
            (&["h2c, websocket"], Some(Uncached::Upgrade)),
            (&["h2c", "websocket"], Some(Uncached::Upgrade)),
            (&[""], Some(Uncached::Upgrade)),
        ] {
            assert_eq!(lookup_only(values), expected, "{values:?}");
        }
    }

    #[test]
    fn cookie_outranks_authorization() {
        assert_eq!(cache_request(&[("authorization", "x")]).credentials, Credentials::Authorization);
        assert_eq!(cache_request(&[("cookie", "a=b")]).credentials, Credentials::Cookie);
        assert_eq!(cache_request(&[("cookie", "a=b"), ("authorization", "x")]).credentials, Credentials::Cookie);
    }

    #[test]
    fn settings_name_credentials_in_both_directions() {
        let (badge, key) = (HeaderName::from_static("x-badge"), HeaderName::from_static("x-api-key"));
        let added = HttpOptions::default().credential_fields([badge.clone()]);
        let removed = added.clone().harmless_fields([badge.clone(), key.clone()]);
        let again = removed.clone().credential_fields([badge, key]);
        for (options, of_badge, of_key) in [
            (HttpOptions::default(), Credentials::None, Credentials::None),
            (added, Credentials::Field, Credentials::None),
            (removed, Credentials::None, Credentials::None),
            (again, Credentials::Field, Credentials::Field),
        ] {
            for (name, expected) in [("x-badge", of_badge), ("x-api-key", of_key)] {
                let disposition = disposition(&Method::GET, &headers(&[(name, "x")]), false, &options);
                let Disposition::Cache(cache_request) = disposition else { panic!() };
                assert_eq!(cache_request.credentials, expected, "{name}");
            }
        }
    }

    #[test]
    fn forwarded_proto_counts_if_it_is_one_scheme() {
        let forwarded = |fields: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(*name, value.parse().expect("a value"));
            }
            let mut cache_request = CacheRequest::default();
            cache_request.read(&headers, &HttpOptions::default());
            cache_request.forwarded
        };
        let (https, host) = (("x-forwarded-proto", "https"), ("x-forwarded-host", "h"));
        assert_eq!(forwarded(&[("host", "h"), ("x-forwarded-for", "1")]), ForwardedFields::None);
        assert_eq!(forwarded(&[("host", "h"), https, ("via", "1")]), ForwardedFields::Scheme("https"));
        assert_eq!(forwarded(&[("x-forwarded-proto", "http")]), ForwardedFields::Scheme("http"));
        for fields in [&[https, https][..], &[("x-forwarded-proto", "HTTPS")], &[https, host], &[host, https], &[host]]
        {
            assert_eq!(forwarded(fields), ForwardedFields::Others, "{fields:?}");
        }
    }

    #[test]
    fn a_response_of_this_second_meets_every_demand() {
        let honouring = HttpOptions::default().honour_request_directives();
        for value in ["no-cache", "max-age=0", "min-fresh=9"] {
            let fields = headers(&[("cache-control", value)]);
            let rejects = |directives: RequestDirectives, ms| {
                let since = Duration::from_millis(ms);
                directives.reject(since, since, Duration::from_secs(8))
            };
            let demands = cache_request(&[("cache-control", value)]).directives;
            assert!(!rejects(demands, 999) && rejects(demands, 1000), "{value}");
            let Disposition::Cache(cache_request) = disposition(&Method::GET, &fields, false, &honouring) else {
                panic!("{value}")
            };
            assert!(rejects(cache_request.directives, 0), "{value}");
        }
    }

    /// Reports whether a request with these directives rejects a response that arrived with age 0 and is fresh for ten
    /// seconds.
    fn rejected(seconds: u64, directives: RequestDirectives) -> bool {
        let age = Duration::from_secs(seconds);
        RequestDirectives { honoured: true, ..directives }.reject(age, age, Duration::from_secs(10).saturating_sub(age))
    }

    /// RFC 9111 §5.2.1.1.
    #[test]
    fn request_max_age_rejects_older_and_stale_responses() {
        let of = |seconds, most| {
            rejected(seconds, RequestDirectives { max_age: Some(Duration::from_secs(most)), ..ANYTHING })
        };
        assert_eq!([of(4, 5), of(5, 5), of(0, 0), of(11, 99)], [false, true, true, true]);
    }

    /// RFC 9111 §5.2.1.3.
    #[test]
    fn min_fresh_rejects_responses_that_expire_earlier() {
        let of = |seconds| rejected(seconds, RequestDirectives { min_fresh: Duration::from_secs(3), ..ANYTHING });
        assert_eq!([of(7), of(8), of(11)], [false, true, true]);
    }

    /// RFC 9111 §5.2.1.4.
    #[test]
    fn request_no_cache_always_validates() {
        let of = |seconds| rejected(seconds, RequestDirectives { no_cache: true, ..ANYTHING });
        assert!(of(0) && of(11));
    }

    proptest! {
        #[test]
        fn acceptance_never_improves_with_age_or_directives(
            age in 0_u64..40, more in 0_u64..40, most in proptest::option::of(0_u64..40), min_fresh in 0_u64..10,
            no_cache: bool,
        ) {
            let (max_age, min_fresh) = (most.map(Duration::from_secs), Duration::from_secs(min_fresh));
            let directives = RequestDirectives { no_cache, max_age, min_fresh, ..ANYTHING };
            prop_assert!(rejected(age + more, directives) || !rejected(age, directives));
            prop_assert!(!rejected(age, ANYTHING));
        }

        #[test]
        fn request_with_no_store_is_forwarded(control in "[ -!#-\\[\\]-~]{0,40}", pragma in "[ -~]{0,20}", head: bool) {
            let fields = headers(&[("cache-control", &format!("{control},no-store")), ("pragma", &pragma)]);
            let method = if head { Method::HEAD } else { Method::GET };
            let options = HttpOptions::default().honour_request_directives();
            prop_assert_eq!(disposition(&method, &fields, false, &options), Disposition::Forward(Uncached::RequestNoStore));
        }
    }
}
