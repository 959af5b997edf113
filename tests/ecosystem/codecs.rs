//! Codecs for `Cache::codec` and `StampedeGuard::cache_with`: prost messages, MessagePack, compression by lz4, and
//! encryption. Each is complete, so that an application can begin with a copy.

use bytes::Bytes;
use chacha20poly1305::{
    Key, XChaCha20Poly1305, XNonce,
    aead::{Aead, AeadCore, KeyInit, OsRng, Payload},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use stampede_guard::{BoxError, Codec, StampedeGuard, ValueCodec};
use stampede_guard_support::{Down, RedisServer};
use std::{fmt::Debug, time::Duration};

/// Messages of prost, which need no serde. The number is that of the message: another message has another number.
/// Fields that are added to a message need none, because protobuf skips what it does not know.
pub(crate) struct Protobuf(pub(crate) u32);

impl<M: prost::Message + Default + 'static> ValueCodec<M> for Protobuf {
    fn id(&self) -> u64 {
        u64::from(self.0) << 32 | 0x7072_6f73
    }

    fn encode(&self, value: &M) -> Result<Bytes, BoxError> {
        Ok(value.encode_to_vec().into())
    }

    fn decode(&self, bytes: &[u8]) -> Result<M, BoxError> {
        Ok(M::decode(bytes)?)
    }
}

/// MessagePack with the names of fields: any serde type, in fewer bytes than JSON. A value that lacks a field does not
/// decode, so a changed type needs another `schema_version` only if its names have another meaning.
struct MessagePack;

impl<V: Serialize + DeserializeOwned + 'static> ValueCodec<V> for MessagePack {
    fn id(&self) -> u64 {
        u64::from_be_bytes(*b"msgpack1")
    }

    fn encode(&self, value: &V) -> Result<Bytes, BoxError> {
        Ok(rmp_serde::to_vec_named(value)?.into())
    }

    fn decode(&self, bytes: &[u8]) -> Result<V, BoxError> {
        Ok(rmp_serde::from_slice(bytes)?)
    }
}

/// Compresses what another codec writes.
struct Lz4<C>(C);

impl<V, C: ValueCodec<V>> ValueCodec<V> for Lz4<C> {
    fn id(&self) -> u64 {
        self.0.id().rotate_left(1) ^ 0x6c7a_3421
    }

    fn encode(&self, value: &V) -> Result<Bytes, BoxError> {
        Ok(lz4_flex::compress_prepend_size(&self.0.encode(value)?).into())
    }

    /// The length comes from the store, so it is limited before memory is reserved.
    fn decode(&self, bytes: &[u8]) -> Result<V, BoxError> {
        let (length, compressed) = lz4_flex::block::uncompressed_size(bytes)?;
        if length > MAX_LENGTH {
            return Err(format!("{length} bytes are too many").into());
        }
        self.0.decode(&lz4_flex::decompress(compressed, length)?)
    }
}

/// Maximum length in bytes of a value that was compressed.
const MAX_LENGTH: usize = 64 << 20;

/// Encrypts what another codec writes, so that a reader of the store learns no more than lengths.
///
/// **Rotation**: the number of the key is a part of the id, so entries of another key are a miss, and nothing has to be
/// decrypted with an old key. While a deploy rolls, processes with the old key and with the new one have entries of their
/// own. The old key is needed no longer than a process that has it lives.
///
/// **Not bound to its key in the cache**: a codec does not see it. The store can answer with an older value, or with that
/// of another key, of the same cache. Where that matters, the value has its id among its fields, and the application
/// compares it.
struct Encrypted<C> {
    codec: C,
    key_number: u32,
    cipher: XChaCha20Poly1305,
}

impl<C> Encrypted<C> {
    fn new(codec: C, key_number: u32, key: &[u8; 32]) -> Self {
        Self { codec, key_number, cipher: XChaCha20Poly1305::new(Key::from_slice(key)) }
    }
}

impl<V, C: ValueCodec<V>> ValueCodec<V> for Encrypted<C> {
    fn id(&self) -> u64 {
        self.codec.id().rotate_left(1) ^ u64::from(self.key_number) << 32 ^ 0x7863_6861
    }

    /// A nonce of 192 bits may be random: no two of them will be equal.
    fn encode(&self, value: &V) -> Result<Bytes, BoxError> {
        let (nonce, plain) = (XChaCha20Poly1305::generate_nonce(&mut OsRng), self.codec.encode(value)?);
        let message = Payload { msg: &plain, aad: &self.id().to_be_bytes() };
        let secret = self.cipher.encrypt(&nonce, message).map_err(|_| "the value is too long")?;
        Ok([&nonce[..], &secret].concat().into())
    }

    fn decode(&self, bytes: &[u8]) -> Result<V, BoxError> {
        let (nonce, secret) = bytes.split_at_checked(24).ok_or("too short")?;
        let message = Payload { msg: secret, aad: &self.id().to_be_bytes() };
        let plain = self.cipher.decrypt(XNonce::from_slice(nonce), message).map_err(|_| "another key wrote this")?;
        self.codec.decode(&plain)
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct User {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(string, tag = "2")]
    name: String,
}

/// The values of a session. Bincode cannot read it back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind")]
enum Session {
    Guest,
    User { name: String, roles: Vec<String> },
}

fn session() -> Session {
    Session::User { name: "Ann".into(), roles: vec!["editor of pages".into(); 50] }
}

/// Stores a value in one process, and reads it in another process.
async fn crosses<V, C>(server: &RedisServer, name: &str, codec: impl Fn() -> C, value: V)
where
    V: Clone + Debug + PartialEq + Send + Sync + 'static,
    C: ValueCodec<V>,
{
    let [one, other] = [(); 2].map(|()| StampedeGuard::new(server.client()).store_timeout(Duration::from_secs(30)));
    let fetched = value.clone();
    one.cache_with(name, codec()).fetch(1, async || Ok::<_, Down>(fetched)).await.expect("a value");
    one.drain().await;
    assert_eq!(other.cache_with(name, codec()).get(1).await.expect("an answer"), Some(value));
}

#[tokio::test]
async fn value_in_each_codec_is_read_by_another_process() {
    let server = RedisServer::start();
    crosses(&server, "user", || Protobuf(1), User { id: 1, name: "Ann".into() }).await;
    crosses(&server, "packed", || MessagePack, session()).await;
    crosses(&server, "guest", || MessagePack, Session::Guest).await;
    crosses(&server, "small", || Lz4(Codec::default()), session()).await;
    crosses(&server, "secret", || Encrypted::new(Lz4(Codec::default()), 1, &[7; 32]), session()).await;
}

#[test]
fn compressed_value_is_smaller_and_claims_no_memory() {
    let (codec, value) = (Lz4(Codec::default()), session());
    let (plain, small) = (Codec::default().encode(&value).expect("encodes"), codec.encode(&value).expect("encodes"));
    assert!(small.len() < plain.len() / 5, "{} of {}", small.len(), plain.len());
    let decoded: Result<Session, _> = codec.decode(&[0xff; 16]);
    assert_eq!(decoded.expect_err("4 GiB").to_string(), "4294967295 bytes are too many");
}

#[tokio::test]
async fn encrypted_value_is_a_miss_for_another_key() {
    let (codec, value) = (Encrypted::new(Codec::default(), 1, &[7; 32]), session());
    let secret = codec.encode(&value).expect("encodes");
    assert!(!secret.windows(6).any(|part| part == b"editor"));
    assert_eq!(codec.decode(&secret).ok(), Some(value.clone()));
    let mut forged = secret.to_vec();
    forged[40] ^= 1;
    assert_eq!(ValueCodec::<Session>::decode(&codec, &forged).ok(), None);
    let stolen = Encrypted::new(Codec::default(), 1, &[8; 32]);
    assert_eq!(ValueCodec::<Session>::decode(&stolen, &secret).ok(), None);

    let guard = StampedeGuard::in_memory();
    let (old, fetched) = (guard.cache_with("session", codec), value.clone());
    old.fetch(1, async || Ok::<_, Down>(fetched)).await.expect("a value");
    guard.drain().await;
    let new = old.clone().codec(Encrypted::new(Codec::default(), 2, &[8; 32]));
    assert_eq!(new.get(1).await.expect("an answer"), None, "a key of another number has its own entries");
    assert_eq!(old.get(1).await.expect("an answer"), Some(value));
}
