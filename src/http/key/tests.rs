use super::*;
use http::HeaderName;

fn of(request: http::request::Builder, options: &HttpOptions) -> Key {
    Target::changed_by(&request.body(()).expect("a request"), options)[0].key(options)
}

fn key(uri: &str, host: &str) -> Key {
    of(Request::get(uri).header("host", host), &HttpOptions::default())
}

#[test]
fn key_differs_for_every_spelling_of_the_target() {
    assert_eq!(key("/a?b=1", "Example.org"), Key::qualified("example.org/a?b=1", Qualifier::GetHttp));
    assert_eq!(key("/a?b=1", "example.org"), key("http://EXAMPLE.org/a?b=1", "other"));
    let spellings = ["/a", "/A", "/a/", "//a", "/%61", "/a?", "/a?b", "/a?b=", "/./a", "/a?a&b", "/a?b&a"];
    for (i, a) in spellings.iter().enumerate() {
        for b in &spellings[i + 1..] {
            assert_ne!(key(a, "h"), key(b, "h"), "{a} {b}");
        }
    }
    assert_ne!(key("/a", "h"), key("/a", "h:8080"));
    assert_ne!(key("http://h/a", "h"), key("https://h/a", "h"));
    assert_eq!(key("https://h/a", "h"), Key::qualified("h/a", Qualifier::GetHttps));
}

/// RFC 9110 §4.2.3. Seen to fail when the authority is kept byte by byte.
#[test]
fn default_port_of_the_scheme_is_left_out_of_the_key() {
    for (uri, host, same) in [
        ("/a", "h:80", true),
        ("/a", "h:443", false),
        ("http://h:80/a", "h", true),
        ("http://h/a", "h:80", true),
        ("http://h:8080/a", "h:8080", false),
        ("http://h:443/a", "h:443", false),
    ] {
        assert_eq!(key(uri, host) == key("http://h/a", "h"), same, "{uri} {host}");
        let request = Request::get(uri).header("host", host).body(()).expect("a request");
        assert!(
            Target::unambiguous(&request, &mut ForwardedFields::None, &HttpOptions::default()).is_ok(),
            "{uri} {host}"
        );
    }
    assert_eq!(key("https://h:443/a", "h"), key("https://h/a", "h"));
    assert_ne!(key("https://h:80/a", "h:80"), key("https://h/a", "h"));
    assert_eq!(key("http://[::1]:80/a", "[::1]"), key("http://[::1]/a", "[::1]"));
}

/// Seen to fail when a key with a qualifier is kept whole.
#[test]
fn key_of_a_long_url_is_kept_as_its_beginning_and_its_hash() {
    let long = |end: &str| key(&format!("/{}{end}", "x".repeat(8000)), "h");
    assert_eq!(format!("{:?}", long("a")), "Key(289 bytes)");
    assert!(long("a") == long("a") && long("a") != long("b"));
}

/// Seen to fail: with `h/acme/report` as its `Host`, a client got the key of a rewritten URI.
#[test]
fn target_is_ambiguous_if_its_host_has_a_delimiter() {
    let trusting = HttpOptions::default().trust_forwarded([HeaderName::from_static("x-forwarded-host")]);
    let is_clear = |uri: &str, field: &str, host: &str, options: &HttpOptions| {
        let request = Request::get(uri).header(field, host).body(()).expect("a request");
        {
            let mut forwarded = ForwardedFields::Others;
            Target::unambiguous(&request, &mut forwarded, options).is_ok() && forwarded == ForwardedFields::Others
        }
    };
    for host in ["h/acme/report", "h/", "h?", "h#a", "user@h"] {
        assert!(!is_clear("/report", "host", host, &HttpOptions::default()), "{host}");
        assert!(!is_clear("/report", "x-forwarded-host", host, &trusting), "{host}");
        assert!(is_clear("/report", "host", host, &HttpOptions::default().ignore_host()), "{host}");
    }
    assert!(!is_clear("http://user@h/report", "accept", "text/html", &HttpOptions::default()));
    assert!(is_clear("/report", "host", "[::1]:8080", &HttpOptions::default()));
}

/// Seen to fail: the key contained the scheme, so that an unsafe request over http kept the entry of https.
#[test]
fn key_of_a_rewritten_uri_omits_the_original_scheme() {
    #[derive(Clone)]
    struct FromClient(Uri);
    let options = HttpOptions::default().original_uri(|extensions| extensions.get::<FromClient>().map(|uri| &uri.0));
    let rewritten = |original: &str, options: &HttpOptions| {
        let original = FromClient(original.parse().expect("a URI"));
        of(Request::get("/acme/report").header("host", "h").extension(original), options)
    };
    let key = rewritten("https://H/report?a=1", &options);
    assert_eq!(key, Key::qualified("h/acme/report\0h/report?a=1", Qualifier::GetHttp));
    assert_eq!(key, rewritten("http://h/report?a=1", &options));
    for other in ["http://g/report?a=1", "http://h/report?a=2", "http://h/Report?a=1", "/report?a=1"] {
        assert_ne!(key, rewritten(other, &options), "{other}");
    }
    let any = options.ignore_host();
    assert_eq!(rewritten("http://h/report", &any), rewritten("http://g/report", &any));
}

#[test]
fn key_of_a_uri_equals_the_key_of_its_request() {
    let uri: Uri = "http://Example.org/a?b".parse().expect("a URI");
    assert_eq!(Target::of_uri(&uri).key(&HttpOptions::default()), key("/a?b", "example.org"));
}

#[test]
fn key_can_include_fields_and_omit_the_host() {
    let tenant = HttpOptions::default().vary_key_on(HeaderName::from_static("x-tenant"));
    let key_with = |values: &[&str]| {
        let request = Request::get("/a").header("host", "h");
        of(values.iter().fold(request, |request, value| request.header("x-tenant", *value)), &tenant)
    };
    let keys =
        [key_with(&[]), key_with(&[""]), key_with(&["a"]), key_with(&["b"]), key_with(&["a", "b"]), key_with(&["ab"])];
    for (i, a) in keys.iter().enumerate() {
        assert!(keys[i + 1..].iter().all(|b| a != b), "{i}");
    }
    let any = HttpOptions::default().ignore_host();
    assert_eq!(of(Request::get("/a").header("host", "x"), &any), of(Request::get("/a").header("host", "y"), &any));
}

#[test]
fn nested_uri_is_the_end_of_the_original() {
    let uri = |text: &str| text.parse::<Uri>().expect("a URI");
    for (original, current, nested) in [
        ("/v1/users", "/users", true),
        ("/v1/users", "/v1/users", true),
        ("/v1/users?a=1", "/users?a=1", true),
        ("/v1", "/", true),
        ("/v1?a", "/?a", true),
        ("http://h/v1/users", "http://H/users", true),
        ("/v1/users?a=1", "/users", false),
        ("/v1/users", "/sers", false),
        ("/v1/users", "/v2/users", false),
        ("/users", "/acme/users", false),
        ("/users", "http://acme.internal/users", false),
        ("http://h/users", "/users", false),
        ("http://h/users", "http://g/users", false),
        ("http://h/users", "https://h/users", false),
    ] {
        assert_eq!(is_nested(&uri(original), &uri(current)), nested, "{original} {current}");
    }
}
