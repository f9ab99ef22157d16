//! Structs that are copied field by field between the C ABI, the kernel's and the device model's.

/// A struct with the named fields of another, which has them under the same names, and the rest as given.
macro_rules! same {
    ($from:expr => $($type:ident)::+ { $($same:ident),+ $(; $($field:ident: $value:expr),+ $(,)?)? $(; ..$rest:expr)? }) => {
        $($type)::+ { $($same: $from.$same,)+ $($($field: $value,)+)? $(..$rest)? }
    };
}

pub(crate) use same;
