//! Response bodies: stored, being collected, or streamed from the origin.

pub(super) mod collector;
pub(super) mod shared;

use crate::error::BoxError;
use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use shared::{BodyEnd, Reader, SharedBody};
use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio::sync::oneshot;

pin_project! {
    /// The body of every response of the HTTP layer: stored, being collected, or streamed from the origin (`B`).
    ///
    /// Data is always [`Bytes`]; stored bytes are shared, not copied. An error is a [`BoxError`]: the origin's own, or
    /// the notice that a shared body was truncated.
    pub struct CacheBody<B> {
        #[pin]
        source: Source<B>,
    }
}

pin_project! {
    #[project = SourceProj]
    enum Source<B> {
        Stored { bytes: Bytes },
        Shared { reader: Reader, rest: Option<oneshot::Receiver<HandedOff<B>>> },
        Rest { body: HandedOff<B> },
        Origin { #[pin] body: B },
    }
}

impl<B> CacheBody<B> {
    pub(super) fn stored(bytes: Bytes) -> Self {
        Self { source: Source::Stored { bytes } }
    }

    pub(super) fn origin(body: B) -> Self {
        Self { source: Source::Origin { body } }
    }

    /// Returns a body that reads a collected body from its beginning. `None` if that will not be complete.
    pub(super) fn shared(body: &Arc<SharedBody>) -> Option<Self> {
        Some(Self { source: Source::Shared { reader: body.join()?, rest: None } })
    }

    /// Returns the body of the leader's client.
    fn leader(body: &Arc<SharedBody>, handed_off: oneshot::Receiver<HandedOff<B>>) -> Self {
        Self { source: Source::Shared { reader: body.leader(), rest: Some(handed_off) } }
    }
}

impl<B: Body<Error: Into<BoxError>>> Body for CacheBody<B> {
    type Data = Bytes;
    type Error = BoxError;

    // PERF: a hit takes 67 instructions more if this is not inlined, which otherwise depends on unrelated code.
    #[inline]
    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut source = self.project().source;
        let frame = match source.as_mut().project() {
            SourceProj::Stored { bytes } => {
                let bytes = std::mem::take(bytes);
                return Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))));
            }
            SourceProj::Origin { body } => ready!(body.poll_frame(cx)),
            SourceProj::Rest { body } => ready!(body.as_mut().poll_frame(cx)),
            SourceProj::Shared { reader, rest } => match (ready!(reader.poll_chunk(cx)), rest) {
                (Ok(chunk), _) => return Poll::Ready(Some(Ok(Frame::data(chunk)))),
                (Err(BodyEnd::Complete), _) => {
                    return Poll::Ready(reader.take_trailers().map(|trailers| Ok(Frame::trailers(trailers))));
                }
                // Too large or too slow to be collected: the rest comes from the origin directly, with its
                // back-pressure.
                (Err(BodyEnd::HandedOff), Some(rest)) => match ready!(Pin::new(rest).poll(cx)) {
                    Ok(mut body) => {
                        if let Some(trailers) = reader.take_trailers() {
                            source.set(Source::Rest { body });
                            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                        }
                        let frame = body.as_mut().poll_frame(cx);
                        source.set(Source::Rest { body });
                        ready!(frame)
                    }
                    Err(_) => return Poll::Ready(Some(Err(TRUNCATED.into()))),
                },
                (Err(BodyEnd::HandedOff | BodyEnd::Truncated), _) => return Poll::Ready(Some(Err(TRUNCATED.into()))),
            },
        };
        let to_bytes = |frame: Frame<B::Data>| frame.map_data(|mut data| data.copy_to_bytes(data.remaining()));
        Poll::Ready(frame.map(|frame| frame.map(to_bytes).map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Stored { bytes } => bytes.is_empty(),
            Source::Shared { reader, .. } => reader.is_at_end(),
            Source::Rest { body } => body.is_end_stream(),
            Source::Origin { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Stored { bytes } => SizeHint::with_exact(bytes.len() as u64),
            Source::Shared { reader, .. } => reader.size_hint(),
            Source::Rest { body } => body.size_hint(),
            Source::Origin { body } => body.size_hint(),
        }
    }
}

/// Written by hand, because a derived implementation would require `B: Debug`.
impl<B> fmt::Debug for CacheBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match &self.source {
            Source::Stored { .. } => "Stored",
            Source::Shared { .. } => "Shared",
            Source::Rest { .. } | Source::Origin { .. } => "Origin",
        };
        write!(f, "CacheBody({source})")
    }
}

/// The rest of a body that is no longer collected.
type HandedOff<B> = Pin<Box<B>>;

const TRUNCATED: &str = "the response body was truncated";
