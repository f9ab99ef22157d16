//! Tables of libibverbs' functions, for those who find them in the library as it is loaded.

/// Structs of functions, each with the name by which the library has it, and `find`, which looks for all of one.
/// The crate that calls this has libloading.
#[macro_export]
macro_rules! functions {
    ($($(#[$attribute:meta])* $vis:vis struct $table:ident {
        $($(#[$doc:meta])* $field:ident = $name:literal: $ty:ty,)*
    })*) => {$(
        $(#[$attribute])*
        #[allow(missing_docs, reason = "section 3 of the manual has a page for each")]
        #[derive(Clone, Copy)]
        $vis struct $table {
            $($(#[$doc])* pub $field: $ty,)*
        }

        impl $table {
            /// Finds them. `absent` makes the error about a name that the library does not have.
            ///
            /// # Safety
            /// The library is a libibverbs, and stays loaded while its functions are called.
            unsafe fn find<E>(library: &libloading::os::unix::Library, absent: impl Fn(&str) -> E) -> Result<Self, E> {
                Ok($table {
                    // SAFETY: the field's type repeats the function's declaration in <infiniband/verbs.h>; dlsym gives
                    // the newest version of it, whose structs this crate has.
                    $($field: *unsafe { library.get(concat!($name, "\0").as_bytes()) }.map_err(|_| absent($name))?,)*
                })
            }
        }
    )*};
}
