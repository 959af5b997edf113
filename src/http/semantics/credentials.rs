//! Request fields that tell users apart, by their names.

/// Reports whether a field of this lower-case name is taken for a credential. A name that only looks like one costs
/// calls to the origin; a credential that is missed shows one user the page of another.
pub(super) fn is_credential(name: &str) -> bool {
    let listed = NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    (listed || (0..name.len()).any(|at| begins_a_word(&name.as_bytes()[at..]))) && !is_exempt(name)
}

/// Reports whether the text begins with a word that occurs in names of credentials. PERF: the first letter chooses the
/// words, so that a name of 20 letters takes about 300 instructions. Common names do not get here.
fn begins_a_word(text: &[u8]) -> bool {
    let words: &[&str] = match text[0] {
        b'a' => &["account", "assertion", "auth"],
        b'c' => &["cert", "claim", "client-id", "consumer", "credential", "csrf", "customer"],
        b'd' => &["device-id"],
        b'e' => &["email"],
        b'i' => &["identity", "impersonate"],
        b'j' => &["jwt"],
        b'k' => &["key"],
        b'l' => &["login"],
        b'm' => &["member"],
        b'o' => &["oidc", "organization", "org-id", "orgid"],
        b'p' => &["passw", "principal"],
        b's' => &["saml", "secret", "session", "signature", "ssl-client", "subject"],
        b't' => &["tenant", "tls-client", "token"],
        b'u' => &["user"],
        b'x' => &["xsrf"],
        b'-' => &["-group", "-role"],
        _ => return false,
    };
    words.iter().any(|word| text.starts_with(word.as_bytes()))
}

/// Reports whether the name has a word of a credential and is none: it names a program, an address, or is set by
/// browsers alike for all users.
fn is_exempt(name: &str) -> bool {
    name.ends_with("user-agent") || name.ends_with("user-ip") || EXEMPT.contains(&name)
}

const NAMES: [&str; 2] = ["dpop", "x-uid"];
const PREFIXES: [&str; 2] = ["cf-access-", "x-hasura-"];
const EXEMPT: [&str; 2] = ["sec-fetch-user", "sec-websocket-key"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_recognised_by_name() {
        for name in [
            "proxy-authorization",
            "x-api-key",
            "api_key",
            "apikey",
            "ocp-apim-subscription-key",
            "x-goog-iap-jwt-assertion",
            "x-vault-token",
            "x-amz-security-token",
            "x-csrf-token",
            "x-xsrf",
            "x-session-id",
            "dpop",
            "x-uid",
            "signature-input",
            "x-user-id",
            "remote-user",
            "x-authenticated-userid",
            "x-auth-request-email",
            "x-forwarded-preferred-username",
            "x-forwarded-groups",
            "x-hasura-org",
            "x-amzn-oidc-data",
            "oidc_claim_sub",
            "cf-access-client-id",
            "x-ms-client-principal",
            "x-credential-identifier",
            "x-consumer-custom-id",
            "x-tenant",
            "x-scope-orgid",
            "impersonate-user",
            "x-account-id",
            "x-forwarded-client-cert",
            "x-forwarded-tls-client-cert-info",
            "x-arr-clientcert",
            "ssl-client-verify",
            "x-ssl-client-s-dn",
        ] {
            assert!(is_credential(name), "{name}");
        }
    }

    #[test]
    fn names_of_programs_and_addresses_are_no_credentials() {
        for name in [
            "x-user-agent",
            "x-device-user-agent",
            "x-appengine-user-ip",
            "sec-fetch-user",
            "x-forwarded-for",
            "x-real-ip",
            "cf-connecting-ip",
            "x-client-ip",
            "x-azure-clientip",
            "x-envoy-external-address",
            "x-b3-traceid",
            "x-cloud-trace-context",
            "cf-ray",
            "sec-ch-ua-full-version-list",
            "device-memory",
            "keep-alive",
            "x-cache-status",
            "upgrade-insecure-requests",
            "",
        ] {
            assert!(!is_credential(name), "{name}");
        }
    }
}
