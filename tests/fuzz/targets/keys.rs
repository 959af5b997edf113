//! Keys as names in Redis, and requests as keys: different keys have different names, and every name stays within its
//! alphabet.

use super::lines;
use http::{Request, Uri, header::HOST};
use stampede_guard::{Key, StampedeGuard, fuzzing, store::CacheKey};
use std::{collections::HashMap, sync::OnceLock};

/// The input: namespaces, keys and variants line by line, then the same lines as hosts and targets of requests.
pub(super) fn hold(input: &[u8]) {
    let parts: Vec<&[u8]> = lines(input).take(4).collect();
    let mut named = HashMap::new();
    for (namespace, key, variant) in combinations(&parts) {
        let (resource, address) = (address(namespace, key, None), address(namespace, key, variant));
        are_in_their_alphabet(&resource, &address);
        let who = (address.namespace().to_owned(), key.to_vec(), variant.map(<[u8]>::to_vec));
        for name in fuzzing::redis_names(&address) {
            let first = named.entry(name).or_insert_with(|| who.clone());
            assert_eq!(*first, who, "two resources have one name");
        }
    }
    tell_requests_apart(&parts);
}

/// Namespace, key, variant.
type Combination<'a> = (&'a [u8], &'a [u8], Option<&'a [u8]>);

/// The parts in each role, and parts cut in two so that they could run into each other.
fn combinations<'a>(parts: &[&'a [u8]]) -> Vec<Combination<'a>> {
    let mut all = Vec::new();
    for a in parts {
        all.extend(parts.iter().map(|b| (*a, *b, None)));
        let (front, back) = a.split_at(a.len() / 2);
        all.extend([(front, back, None), (parts[0], front, Some(back)), (parts[0], *a, Some(b""))]);
    }
    all
}

fn address(namespace: &[u8], key: &[u8], variant: Option<&[u8]>) -> CacheKey {
    static GUARD: OnceLock<StampedeGuard> = OnceLock::new();
    let guard = GUARD.get_or_init(StampedeGuard::in_memory).clone().namespace(String::from_utf8_lossy(namespace));
    let key = Key::new(key);
    fuzzing::address(&guard, variant.map_or(key.clone(), |variant| key.variant(variant.to_vec())))
}

/// Names have one hash tag, at the beginning, the same for all names of a resource. Redis Cluster keeps these names
/// together, and a key cannot choose its slot.
fn are_in_their_alphabet(resource: &CacheKey, address: &CacheKey) {
    let names = fuzzing::redis_names(address);
    let tag = &names[0][..=names[0].find('}').expect("a hash tag")];
    let of_primary = fuzzing::redis_names(resource);
    for name in names.iter().chain(of_primary.first()) {
        let rest = name.strip_prefix(tag).expect("the tag of the resource");
        let plain = |c: char| c.is_ascii_alphanumeric() || "_.:/-".contains(c);
        assert!(tag[1..tag.len() - 1].chars().all(plain) && rest.chars().all(plain), "{name}");
        assert!(tag.starts_with('{') && name.len() <= 64 + 64 + 64, "{name}");
    }
}

/// Requests have the same key only if scheme, authority and target are equal. The case of the authority and the port
/// that the scheme implies do not count.
fn tell_requests_apart(parts: &[&[u8]]) {
    let mut resources = HashMap::new();
    for host in parts {
        for target in parts {
            let Some((key, who)) = request(host, target) else { continue };
            let first = resources.entry(key).or_insert_with(|| who.clone());
            assert_eq!(*first, who, "two resources have one key");
        }
    }
}

type Resource = (String, Vec<u8>, String);

fn request(host: &[u8], target: &[u8]) -> Option<(Key, Resource)> {
    let uri = Uri::try_from(target).ok()?;
    let request = Request::get(uri.clone()).header(HOST, host).body(()).ok()?;
    let authority = uri.authority().map_or(host, |authority| authority.as_str().as_bytes());
    let scheme = uri.scheme_str().unwrap_or("http").to_owned();
    let authority = authority.strip_suffix(if scheme == "https" { &b":443"[..] } else { b":80" }).unwrap_or(authority);
    let target = uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
    Some((fuzzing::http_key(&request)?, (scheme, authority.to_ascii_lowercase(), target)))
}
