//! The choice of an implementation.

/// Runs `module::function(arguments)` as the instruction set has it: the definition or its SIMD twin.
macro_rules! by_isa {
    ($isa:expr, $module:ident :: $function:ident ( $($argument:expr),* )) => {
        match $isa.kind() {
            $crate::isa::Kind::Scalar => $crate::scalar::$module::$function($($argument),*),
            // SAFETY: this kind is only constructed after avx2, fma and f16c were detected.
            #[cfg(target_arch = "x86_64")]
            $crate::isa::Kind::Avx2 => unsafe {
                $crate::x86::entries::avx2::$module::$function($($argument),*)
            },
            // SAFETY: these kinds are only constructed after avx512f, bw, dq and vl were detected.
            #[cfg(target_arch = "x86_64")]
            $crate::isa::Kind::Avx512 | $crate::isa::Kind::Avx512Vnni => unsafe {
                $crate::x86::entries::avx512::$module::$function($($argument),*)
            },
        }
    };
}
pub(crate) use by_isa;
