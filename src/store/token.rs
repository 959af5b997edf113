//! Tokens and inboxes: the random names of an attempt to lead and of a process.

use crate::clock;
use std::fmt;

/// The id of one attempt to lead, and later of the entry that it filled. Random, and printable in any store.
///
/// The first half names the process that made it.
///
/// ```
/// use stampede_guard::lock::Token;
///
/// let token = Token::from_bytes(*b"aaaabbbbccccdddd"); // as read from Redis
/// assert_eq!(token.as_bytes(), b"aaaabbbbccccdddd");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; 16]);

impl Token {
    /// Creates a unique token of the given inbox.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    #[must_use]
    pub fn unique(inbox: Inbox) -> Self {
        let mut token = [0; 16];
        token[..8].copy_from_slice(&inbox.0);
        token[8..].copy_from_slice(&printable(clock::random_bytes()));
        Self(token)
    }

    /// Returns the inbox of the process that made this token.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    #[must_use]
    pub fn inbox(&self) -> Inbox {
        let mut inbox = [0; 8];
        inbox.copy_from_slice(&self.0[..8]);
        Inbox(inbox)
    }

    /// Returns the token as bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Restores a token from bytes that were read from a store.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.0.escape_ascii())
    }
}

/// The name of one process, under which its waiters receive wake-ups.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Inbox([u8; 8]);

impl Inbox {
    /// Creates a unique inbox.
    #[must_use]
    pub fn unique() -> Self {
        Self(printable(clock::random_bytes()))
    }

    /// Returns the inbox as bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inbox({})", self.0.escape_ascii())
    }
}

/// Maps six bits of each byte to a character that is safe in channel names, ACL patterns and terminals.
fn printable(random: [u8; 8]) -> [u8; 8] {
    random.map(|byte| ALPHABET[usize::from(byte & 63)])
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
