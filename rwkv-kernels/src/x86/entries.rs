//! The kernels over [`Lanes`](super::lanes::Lanes), compiled once for each instruction set.

/// For each function of a kernel module: a function of the same name, in `avx2` and in `avx512`, that
/// is compiled for these instructions and may only run where they are.
macro_rules! entries {
    ($($module:ident {
        $(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*
    })*) => {
        pub(crate) mod avx2 {
            use crate::x86::lanes_avx2::Avx2;
            $(pub(crate) mod $module {
                use super::*;
                $(#[target_feature(enable = "avx2,fma,f16c")]
                pub(crate) fn $name($($argument: $type),*) $(-> $result)? {
                    crate::x86::$module::$name(Avx2::here(), $($argument),*)
                })*
            })*
        }
        pub(crate) mod avx512 {
            use crate::x86::lanes_avx512::Avx512;
            $(pub(crate) mod $module {
                use super::*;
                $(#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
                pub(crate) fn $name($($argument: $type),*) $(-> $result)? {
                    crate::x86::$module::$name(Avx512::here(), $($argument),*)
                })*
            })*
        }
    };
}

entries! {
    rows {
        fn exp(x: &mut [f32]);
        fn sigmoid(x: &mut [f32]);
        fn silu(x: &mut [f32]);
        fn tanh(x: &mut [f32]);
        fn relu_squared(x: &mut [f32]);
        fn decay(x: &mut [f32]);
        fn add_assign(y: &mut [f32], x: &[f32]);
        fn mul_assign(y: &mut [f32], x: &[f32]);
        fn add_bias(x: &mut [f32], bias: &[f32]);
        fn mix(x: &[f32], prev: &[f32], mix: &[f32], y: &mut [f32]);
        fn mix_value(v0: &[f32], gate: &[f32], v_first: &[f32], v: &mut [f32]);
    }
    norm {
        fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32, y: &mut [f32]);
        fn l2_normalize(x: &mut [f32]);
        fn softmax(x: &mut [f32]);
        fn dot(x: &[f32], y: &[f32]) -> f32;
    }
    head {
        fn prepare_head(head: crate::HeadParams<'_>, rows: crate::HeadRows<'_>);
        fn head_output(head: crate::HeadOutput<'_>, y: &mut [f32]);
    }
    attention {
        fn scores(q: &[f32], keys: crate::KvRows<'_>, first: usize, scale: f32, scores: &mut [f32]);
        fn add_values(weights: &[f32], values: crate::KvRows<'_>, first: usize, y: &mut [f32]);
        fn scores_each(q: [&[f32]; crate::ATTEND_QUERIES], keys: crate::KvRows<'_>, first: usize, scale: f32, lists: [&mut [f32]; crate::ATTEND_QUERIES]);
        fn add_values_each(weights: [&[f32]; crate::ATTEND_QUERIES], values: crate::KvRows<'_>, first: usize, y: [&mut [f32]; crate::ATTEND_QUERIES]);
    }
    wkv {
        fn wkv7(head: crate::Wkv7<'_>, state: &mut [f32], y: &mut [f32]);
    }
}
