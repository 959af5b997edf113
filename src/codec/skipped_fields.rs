//! Finds fields that a type leaves out of its encoding.
//!
//! The bytes of a format that is not self-describing shift by such a field, and may decode as another value. The derived
//! code reports each field that `skip_serializing_if` leaves out to the serializer. Bincode and postcard ignore that, so a
//! serializer without output hears it.

use serde::{
    Serialize, Serializer,
    de::value::Error,
    ser::{self, Error as _},
};

/// Fails if the value leaves out a field.
pub(super) fn refuse<T: Serialize>(value: &T) -> Result<(), Error> {
    value.serialize(SkippedFields)
}

struct SkippedFields;

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
            Ok(self)
        })+
    };
}

/// Implements the containers. The derived code reports a field that is left out by `skip_field`.
macro_rules! containers {
    ($($container:ident { $($value:ident($($name:ty)?)),+ $(; $skip:ident)? })+) => {
        $(impl ser::$container for SkippedFields {
            type Ok = ();
            type Error = Error;

            $(fn $value<T: ?Sized + Serialize>(&mut self, $(_: $name,)? value: &T) -> Result<(), Error> {
                value.serialize(SkippedFields)
            })+

            $(fn $skip(&mut self, field: &'static str) -> Result<(), Error> {
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

impl Serializer for SkippedFields {
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
        serialize_f32(f32);
        serialize_f64(f64);
        serialize_char(char);
        serialize_str(&str);
        serialize_bytes(&[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(&'static str);
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

    fn serialize_some<T: ?Sized + Serialize>(self, value: &T) -> Result<(), Error> {
        value.serialize(self)
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
        value.serialize(self)
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}
