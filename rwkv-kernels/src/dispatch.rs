//! The choice of an implementation.

/// Runs `scalar::module::function(arguments)`, or its twin for the instruction set.
macro_rules! by_isa {
    ($isa:expr, $module:ident :: $function:ident ( $($argument:expr),* )) => {
        match $isa.kind() {
            _ => $crate::scalar::$module::$function($($argument),*),
        }
    };
}
pub(crate) use by_isa;
