//! Finds what an encoding loses, so that it may decode as another value.
//!
//! JSON writes `null` for `None` and `()`, also within `Some`, and for a float that is not finite.
//!
//! The bytes of a format that is not self-describing shift by such a field, and may decode as another value. The derived
//! code reports each field that `skip_serializing_if` leaves out to the serializer. Bincode and postcard ignore that, so a
//! serializer without output hears it.

use serde::{
    Serialize, Serializer,
    de::value::Error,
    ser::{self, Error as _},
};

/// Fails if the encoding of the value loses something.
pub(super) fn refuse<T: Serialize>(value: &T, is_json: bool) -> Result<(), Error> {
    value.serialize(Losses { is_json, within_some: false })
}

#[derive(Clone, Copy)]
struct Losses {
    is_json: bool,
    /// Whether the value is that of a `Some`.
    within_some: bool,
}

impl Losses {
    fn null(self) -> Result<(), Error> {
        match self.is_json && self.within_some {
            true => Err(Error::custom("`null` within `Some` would decode as `None`")),
            false => Ok(()),
        }
    }

    fn float(self, is_finite: bool) -> Result<(), Error> {
        match self.is_json && !is_finite {
            true => Err(Error::custom("JSON has no number for a float that is not finite")),
            false => Ok(()),
        }
    }
}

/// Implements the requests for leaves, which have no fields.
macro_rules! leaves {
    ($($request:ident($($argument:ty),*);)+) => {
        $(fn $request(self, $(_: $argument),*) -> Result<(), Error> {
            Ok(())
        })+
    };
}

/// Implements the requests that begin a container.
macro_rules! begins {
    ($($request:ident($($argument:ty),+): $container:ident;)+) => {
        $(type $container = Self;

        fn $request(self, $(_: $argument),+) -> Result<Self, Error> {
            Ok(Self { within_some: false, ..self })
        })+
    };
}

/// Implements the containers. The derived code reports a field that is left out by `skip_field`.
macro_rules! containers {
    ($($container:ident { $($value:ident($($name:ty)?)),+ $(; $skip:ident)? })+) => {
        $(impl ser::$container for Losses {
            type Ok = ();
            type Error = Error;

            $(fn $value<T: ?Sized + Serialize>(&mut self, $(_: $name,)? value: &T) -> Result<(), Error> {
                value.serialize(*self)
            })+

            $(fn $skip(&mut self, field: &'static str) -> Result<(), Error> {
                if self.is_json {
                    return Ok(()); // it has the names of the fields
                }
                Err(Error::custom(format_args!("`skip_serializing_if` leaves out the field `{field}`")))
            })?

            fn end(self) -> Result<(), Error> {
                Ok(())
            }
        })+
    };
}

containers! {
    SerializeSeq { serialize_element() }
    SerializeTuple { serialize_element() }
    SerializeTupleStruct { serialize_field() }
    SerializeTupleVariant { serialize_field() }
    SerializeMap { serialize_key(), serialize_value() }
    SerializeStruct { serialize_field(&'static str); skip_field }
    SerializeStructVariant { serialize_field(&'static str); skip_field }
}

impl Serializer for Losses {
    type Ok = ();
    type Error = Error;

    leaves! {
        serialize_bool(bool);
        serialize_i8(i8);
        serialize_i16(i16);
        serialize_i32(i32);
        serialize_i64(i64);
        serialize_i128(i128);
        serialize_u8(u8);
        serialize_u16(u16);
        serialize_u32(u32);
        serialize_u64(u64);
        serialize_u128(u128);
        serialize_char(char);
        serialize_str(&str);
        serialize_bytes(&[u8]);
        serialize_unit_variant(&'static str, u32, &'static str);
    }

    begins! {
        serialize_seq(Option<usize>): SerializeSeq;
        serialize_tuple(usize): SerializeTuple;
        serialize_tuple_struct(&'static str, usize): SerializeTupleStruct;
        serialize_tuple_variant(&'static str, u32, &'static str, usize): SerializeTupleVariant;
        serialize_map(Option<usize>): SerializeMap;
        serialize_struct(&'static str, usize): SerializeStruct;
        serialize_struct_variant(&'static str, u32, &'static str, usize): SerializeStructVariant;
    }

    fn serialize_f32(self, number: f32) -> Result<(), Error> {
        self.float(number.is_finite())
    }

    fn serialize_f64(self, number: f64) -> Result<(), Error> {
        self.float(number.is_finite())
    }

    fn serialize_none(self) -> Result<(), Error> {
        self.null()
    }

    fn serialize_unit(self) -> Result<(), Error> {
        self.null()
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Error> {
        self.null()
    }

    fn serialize_some<T: ?Sized + Serialize>(self, value: &T) -> Result<(), Error> {
        value.serialize(Self { within_some: true, ..self })
    }

    fn serialize_newtype_struct<T: ?Sized + Serialize>(self, _: &'static str, value: &T) -> Result<(), Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: ?Sized + Serialize>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        value.serialize(Self { within_some: false, ..self })
    }

    fn is_human_readable(&self) -> bool {
        self.is_json
    }
}
