//! The values of labels.

/// Defines an enum with the name of each variant, as metrics and spans show it.
macro_rules! label_values {
    ($(#[$doc:meta])* $enum:ident { $($(#[$of_variant:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $enum {
            $($(#[$of_variant])* $variant,)+
        }

        #[cfg_attr(
            not(all(feature = "metrics", feature = "tracing")),
            allow(dead_code, reason = "what only metrics or only spans and events show")
        )]
        impl $enum {
            pub(crate) const NAMES: &'static [&'static str] = &[$($name,)+];

            pub(crate) const fn as_str(self) -> &'static str {
                Self::NAMES[self as usize]
            }
        }
    };
}

label_values! {
    /// The front end of a request.
    FrontEnd {
        Http = "http",
        Fetch = "fetch",
        Keyed = "keyed",
    }
}

label_values! {
    /// An operation of the store.
    StoreOperation {
        Get = "get",
        GetOrLease = "get_or_lease",
        Fill = "fill",
        Extend = "extend",
        Release = "release",
        Invalidate = "invalidate",
        /// The read by which an open circuit breaker finds out whether the store answers again.
        Probe = "probe",
    }
}

label_values! {
    /// The part of a request in its fetch.
    Role {
        Leader = "leader",
        Waiter = "waiter",
    }
}

label_values! {
    /// The kind of a failed fetch.
    FetchFailure {
        /// The fetch returned an error.
        Origin = "origin",
        /// The response is a server error.
        ServerError = "server_error",
        /// The fetch was aborted at its timeout.
        TimedOut = "timed_out",
        Panicked = "panicked",
        /// The value does not survive its codec.
        Codec = "codec",
    }
}
