//! The cache key of a request (RFC 9111 §2): everything that the origin sees of the target, and nothing else.

use super::{
    semantics::{
        forwarded::{self, without_default_port},
        request::ForwardedFields,
        request_fields::{self, Claim, FieldKind},
    },
    stored_response::RESPONSE,
};
use crate::{
    config::{Config, http::HttpOptions},
    key::{Key, Qualifier},
    layout::layout,
    telemetry,
    uncached::Uncached,
};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, header, uri::PathAndQuery};

/// The target URI of a request (RFC 9110 §7.1), with the fields that [`HttpOptions`] may add to the key.
#[derive(Clone, Copy)]
pub(super) struct Target<'a> {
    scheme: &'a str,
    authority: &'a [u8],
    path: &'a str,
    fields: Option<&'a HeaderMap>,
    /// The URI as the client sent it, if middleware has changed more than a prefix of it.
    rewritten_from: Option<&'a Uri>,
}

impl<'a> Target<'a> {
    /// Returns the targets that an unsafe request changes, first the one by which the origin and its clients know the
    /// resource. An application with a trusted proxy has two names, and its responses may be stored under
    /// either. A field that lies can therefore drop entries, but add none. Fields that contradict each other count for
    /// nothing.
    pub(super) fn changed_by<B>(request: &'a Request<B>, options: &HttpOptions) -> Vec<Self> {
        let (own, _) = Self::own(request, options);
        let public = own.published(request.headers(), options).unwrap_or(own);
        if own.authority.eq_ignore_ascii_case(public.authority) { vec![public] } else { vec![public, own] }
    }

    /// Returns the target that the request target and `Host` name, and why it is refused if they do not name one
    /// resource.
    fn own<B>(request: &'a Request<B>, options: &HttpOptions) -> (Self, Option<Uncached>) {
        let (uri, rewritten_from) = client_uri(request, options);
        let (host, is_repeated) = host(request.headers());
        let mut target = Self { fields: Some(request.headers()), rewritten_from, ..Self::of_uri(uri) };
        let is_named = match (uri.authority(), host) {
            (None, Some(host)) => {
                target.authority = host.as_bytes();
                true
            }
            (Some(_), Some(host)) => target.is_authority(host.as_bytes()),
            (_, None) => true,
        };
        let of_http = matches!(uri.scheme_str(), None | Some("http" | "https"));
        let refusal = if !of_http || uri.path_and_query().is_none() {
            Some(Uncached::InvalidTarget)
        } else if (is_repeated || !is_named) && !options.ignore_host {
            Some(Uncached::AmbiguousHost)
        } else {
            None
        };
        (target, refusal)
    }

    pub(super) fn of_uri(uri: &'a Uri) -> Self {
        let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let authority = uri.authority().map_or(&b""[..], |authority| authority.as_str().as_bytes());
        Self { scheme: uri.scheme_str().unwrap_or("http"), authority, path, fields: None, rewritten_from: None }
    }

    /// Returns the target with the scheme of `X-Forwarded-Proto` and the origin of trusted fields. `None` if these
    /// contradict each other.
    fn published(self, headers: &'a HeaderMap, options: &HttpOptions) -> Option<Self> {
        let origin = forwarded::public_origin(headers, options)?;
        let (scheme, authority) = (origin.scheme.unwrap_or(self.scheme), origin.authority.unwrap_or(self.authority));
        Some(Self { scheme, authority, ..self })
    }

    /// Reports whether this names the authority of the target.
    fn is_authority(&self, authority: &[u8]) -> bool {
        let bare = |authority| without_default_port(authority, self.scheme);
        bare(self.authority).eq_ignore_ascii_case(bare(authority))
    }

    /// Returns the target of a request, or why it is refused: it is too long or ambiguous.
    ///
    /// It must name the same resource for every reader. Handlers go by `Host`, while the key goes by the authority of
    /// the target (RFC 9112 §3.2.2), so these must agree. A target that is only an authority (§3.2.3) would get the key
    /// of the root path, which no router takes it for. An authority with a delimiter would run into the path or the user
    /// information of another key. Handlers also go by the fields of proxies: if fields that are not in the key
    /// disagree with it, they select the response.
    pub(super) fn unambiguous<B>(
        request: &'a Request<B>,
        forwarded: &mut ForwardedFields,
        options: &HttpOptions,
    ) -> Result<Self, Uncached> {
        let (target, refusal) = Self::own(request, options);
        if let Some(reason) = refusal.or(target.exceeds_limit().then_some(Uncached::TargetTooLong)) {
            return Err(reason);
        }
        let target = match *forwarded {
            ForwardedFields::None => target,
            ForwardedFields::Scheme(scheme) => Self { scheme, ..target },
            ForwardedFields::Others | ForwardedFields::Contradicting => target.compared(request, forwarded, options),
        };
        // These bytes end an authority, or the user information in it (RFC 3986 §3.2).
        let is_delimiter = |byte: &u8| matches!(byte, b'/' | b'?' | b'#' | b'@');
        match !options.ignore_host && target.authority.iter().any(is_delimiter) {
            true => Err(Uncached::AmbiguousHost),
            false => Ok(target),
        }
    }

    /// Returns the target with the origin of trusted fields. Records whether other fields contradict it.
    fn compared<B>(self, request: &'a Request<B>, forwarded: &mut ForwardedFields, options: &HttpOptions) -> Self {
        let published = self.published(request.headers(), options);
        let target = published.unwrap_or(self);
        let contradiction = match published {
            None => Some("X-Forwarded-Proto or a trusted field"),
            Some(_) => target.contradiction(request, options).map(HeaderName::as_str),
        };
        if let Some(field) = contradiction {
            telemetry::contradiction(field);
            *forwarded = ForwardedFields::Contradicting;
        }
        target
    }

    /// Returns a field that says something else than the request itself. Trusted fields are in the key, so they may say
    /// anything.
    fn contradiction<B>(&self, request: &'a Request<B>, options: &HttpOptions) -> Option<&'a HeaderName> {
        let agrees = |name: &HeaderName, value: &HeaderValue| match request_fields::kind(name) {
            _ if options.trusted_forwarded.contains(name) => true,
            FieldKind::Forwarded(Claim::Method) => value == request.method().as_str(),
            FieldKind::Forwarded(claim) => self.agrees(claim, value, options),
            FieldKind::ForwardedProto => value == self.scheme,
            _ => true,
        };
        request.headers().iter().find(|(name, value)| !agrees(name, value)).map(|(name, _)| name)
    }

    /// Reports whether the value repeats this part of the target.
    fn agrees(&self, claim: Claim, value: &HeaderValue, options: &HttpOptions) -> bool {
        let is_authority = |authority: &[u8]| options.ignore_host || self.is_authority(authority);
        match claim {
            Claim::Authority => is_authority(value.as_bytes()),
            Claim::Target => value == self.path,
            Claim::Path => value == self.path || self.path.split('?').next().is_some_and(|path| value == path),
            Claim::Prefix => value.is_empty() || value == "/",
            Claim::Port => options.ignore_host || value == forwarded::port(self.authority, self.scheme),
            Claim::Scheme => value == self.scheme,
            Claim::Tls => value == if self.scheme == "https" { "on" } else { "off" },
            Claim::Forwarded => forwarded::parse(value).is_some_and(|origin| {
                origin.scheme.is_none_or(|scheme| scheme == self.scheme) && origin.authority.is_none_or(is_authority)
            }),
            Claim::Method => false, // no part of the target
        }
    }

    /// Reports whether the path exceeds 8,000 bytes, more than RFC 9110 §4.1 asks recipients to support. Nothing is
    /// stored of such a target, because clients choose URLs, and tables of keys must stay small.
    pub(super) fn exceeds_limit(&self) -> bool {
        self.path.len() > 8000
    }

    /// Returns the key of a GET.
    pub(super) fn key(&self, options: &HttpOptions) -> Key {
        self.qualified(if self.scheme == "https" { Qualifier::GetHttps } else { Qualifier::GetHttp }, options)
    }

    /// Returns authority, path and query, and the same of the URI before a rewrite, with this qualifier:
    /// [`Qualifier::Any`] stands for both schemes, in an invalidation, because requests of HTTP/2 name their scheme, and
    /// requests of HTTP/1.1 do not. The scheme of the URI before a rewrite is left out, so that an invalidation covers
    /// both. No part can contain a NUL, so a NUL separates them.
    pub(super) fn qualified(&self, qualifier: Qualifier, options: &HttpOptions) -> Key {
        let mut key = Vec::with_capacity(self.authority.len() + self.path.len());
        self.append_to(&mut key, options);
        if let Some(original) = self.rewritten_from {
            key.push(b'\0');
            Self::of_uri(original).append_to(&mut key, options);
        }
        for field in &*options.vary_key_on {
            // No URI begins with a line feed.
            key.push(b'\0');
            for line in self.fields.iter().flat_map(|fields| fields.get_all(field)) {
                key.push(b'\n');
                key.extend_from_slice(line.as_bytes());
            }
        }
        Key::qualified(key, qualifier)
    }

    /// Appends authority, path and query. The authority is lower-cased and has no default port (RFC 9110 §4.2.3). Path and
    /// query are kept byte by byte, because no two spellings are certain to name one resource.
    fn append_to(&self, key: &mut Vec<u8>, options: &HttpOptions) {
        let authority = if options.ignore_host { &b"*"[..] } else { without_default_port(self.authority, self.scheme) };
        // RFC 9110 §4.2.3: an empty path is `/`.
        key.extend(authority.iter().map(u8::to_ascii_lowercase).chain(self.path.starts_with('?').then_some(b'/')));
        key.extend_from_slice(self.path.as_bytes());
    }
}

pub(super) fn layout_of_responses(config: &Config) -> u64 {
    layout(RESPONSE, config.schema_version)
}

/// Returns the first `Host`, and whether there is a second one. PERF: it is the first field of nearly all requests,
/// where it takes 90 instructions less than a lookup.
fn host(headers: &HeaderMap) -> (Option<&HeaderValue>, bool) {
    let mut fields = headers.iter();
    if let Some((name, host)) = fields.next()
        && name == header::HOST
    {
        return (Some(host), fields.next().is_some_and(|(name, _)| name == header::HOST));
    }
    let mut hosts = headers.get_all(header::HOST).iter();
    (hosts.next(), hosts.next().is_some())
}

/// Returns the URI that names the resource, and the URI as the client sent it if that does not name the resource alone.
///
/// `Router::nest` strips the prefix that it has matched, and `/v1/users` must not answer `/v2/users`, so the client's URI
/// counts. If other middleware has changed the URI, for example to that of one tenant, the origin sees both.
fn client_uri<'a, B>(request: &'a Request<B>, options: &HttpOptions) -> (&'a Uri, Option<&'a Uri>) {
    let (current, extensions) = (request.uri(), request.extensions());
    let original = options.original_uri.as_ref().and_then(|find| find.0(extensions));
    #[cfg(feature = "axum")]
    let original = original.or_else(|| extensions.get::<axum::extract::OriginalUri>().map(|original| &original.0));
    match original {
        None => (current, None),
        Some(original) if is_nested(original, current) => (original, None),
        Some(original) => (current, Some(original)),
    }
}

/// Reports whether a nested router can have left this of the URI: the end of its path, from a slash on, or the root.
fn is_nested(original: &Uri, current: &Uri) -> bool {
    let (path, rest) = (original.path(), current.path());
    rest.starts_with('/')
        && (path.ends_with(rest) || rest == "/")
        && original.query() == current.query()
        && original.scheme() == current.scheme()
        && original.authority() == current.authority()
}

#[cfg(test)]
mod tests;
