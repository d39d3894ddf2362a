//! Attention on a CPU: what a sequence ([`crate::cache`]) and slots ([`crate::slots`]) share.
//!
//! A store implements [`tqkv_simd::page::AttentionParts`] over its tokens, and the loop in `tqkv-simd` softens and sums
//! them part by part, for up to eight query heads. A token that a query does not see has the logit -inf, and parts that
//! nobody sees are skipped. What a part needs is here:
//!
//! | file | holds |
//! | --- | --- |
//! | `queries.rs` | queries in the forms that rows and pages of codes are scored with |
//! | `pages.rs` | scores and sums of pages of codes |
//! | `sums.rs` | what queries have seen, in spans that threads share and that are joined in order |
//! | `tile.rs` | decoded tokens and many queries, as products of matrices |

mod pages;
mod queries;
mod sums;
pub(crate) mod tile;

pub(crate) use pages::{PageSum, PageView, score_page, sum_pages};
pub(crate) use queries::{HeadQueries, add_products};
pub(crate) use sums::{Spans, Sums};
