//! Joins kernels: keys and values of a token are encoded in one launch, and copied as f16 by it where a cache
//! has exact tokens.
//!
//! Keys and values are two tensors in two pools, often with two codecs. A kernel for each pair of codecs
//! would make 64 kernels per head dim. Instead, the text for the driver holds the kernels of a cache as one
//! entry, one after the other. Blocks of row i of the grid run kernel i. The parameters of all follow in
//! this order.

/// The name of the entry that [`side_by_side`] writes.
pub const PAIR: &str = "side_by_side";

/// A PTX text with some of its kernels, of which one may be named several times, as one entry, [`PAIR`], and no
/// other. Returns `None` if one of them is missing. The kernels must count blocks along x only.
pub fn side_by_side(text: &str, names: &[&str]) -> Option<String> {
    let mut kernels = text.split(".visible .entry ");
    let shared = kernels.next()?;
    let (mut parameters, mut jumps, mut bodies) = (Vec::new(), String::new(), String::new());
    for (row, name) in names.iter().enumerate() {
        let kernel = kernels.clone().find_map(|kernel| ParsedKernel::new(kernel, name))?;
        if row == 0 {
            parameters.push(kernel.parameters.to_owned());
            bodies += kernel.body;
            continue;
        }
        parameters.push(renamed(kernel.parameters, name, row));
        bodies += &format!("\n$L__row_{row}:{}", renamed(kernel.body, name, row));
        jumps += &format!("\tsetp.eq.b32 \t%is_mine, %row, {row};\n\t@%is_mine bra \t$L__row_{row};\n");
    }
    Some(format!(
        "{shared}.visible .entry {PAIR}({}\n)\n{{\n\t.reg .pred \t%is_mine;\n\t.reg .b32 \t%row;\n\
         \tmov.u32 \t%row, %ctaid.y;\n{jumps}{bodies}\n}}\n",
        parameters.join(",")
    ))
}

/// A kernel of a text: the text between its parentheses, and the text between its braces.
#[derive(Clone, Copy)]
struct ParsedKernel<'a> {
    parameters: &'a str,
    body: &'a str,
}

impl<'a> ParsedKernel<'a> {
    /// Reads a kernel if `text` starts with `name`. It would lose directives, but encoders have none.
    fn new(text: &'a str, name: &str) -> Option<Self> {
        let (parameters, rest) = text.strip_prefix(name)?.strip_prefix('(')?.split_once("\n)\n{")?;
        Some(Self { parameters, body: rest.split_once("\n}")?.0 })
    }
}

/// Renames the registers, the labels and the parameters of kernel `name` for a row of the grid.
fn renamed(text: &str, name: &str, row: usize) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$');
    let (mut out, mut rest) = (String::with_capacity(text.len() + text.len() / 8), text);
    while let Some(start) = rest.find(|c: char| is_part(c) || c == '%') {
        out += &rest[..start];
        let word = &rest[start..];
        let end = word.find(|c: char| !is_part(c) && c != '%').unwrap_or(word.len());
        let (word, after) = word.split_at(end);
        // `%tid.x` is a special register, and keeps its name.
        if let Some(register) = word.strip_prefix('%').filter(|_| !after.starts_with('.')) {
            out += &format!("%k{row}_");
            out += register;
        } else {
            out += word;
            if word.starts_with('$')
                || word.strip_prefix(name).is_some_and(|rest| rest.starts_with("_param_"))
            {
                out += &format!("_k{row}");
            }
        }
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_share_no_name() {
        let kernel = ".visible .entry f(\n\t.param .u64 f_param_0\n)\n{\n\t.reg .b32 \t%r<3>;\n\t\
                      ld.param.b64 \t%rd1, [f_param_0];\n\tmov.u32 \t%r1, %ctaid.x;\n\tmov.b64 \t%rd2, table_$_f;\n\
                      $L__BB1_2:\n\t@%p1 bra \t$L__BB1_2;\n\tret;\n}\n";
        let text = format!(".version 7.8\n{kernel}");
        let pair = side_by_side(&text, &["f", "f", "f"]).unwrap();
        let (first, others) = pair.split_once("$L__row_1:").unwrap();
        assert!(first.contains(
            "\t.param .u64 f_param_0,\n\t.param .u64 f_param_0_k1,\n\t.param .u64 f_param_0_k2\n)"
        ));
        assert!(first.contains("[f_param_0];") && first.contains("bra \t$L__BB1_2;\n\tret;"));
        assert!(first.contains("%row, 2;\n\t@%is_mine bra \t$L__row_2;"));
        let (second, third) = others.split_once("\n$L__row_2:").unwrap();
        assert_eq!(
            second,
            "\n\t.reg .b32 \t%k1_r<3>;\n\tld.param.b64 \t%k1_rd1, [f_param_0_k1];\n\tmov.u32 \t%k1_r1, \
             %ctaid.x;\n\tmov.b64 \t%k1_rd2, table_$_f;\n$L__BB1_2_k1:\n\t@%k1_p1 bra \t$L__BB1_2_k1;\n\tret;"
        );
        assert_eq!(third, format!("{}\n}}\n", second.replace("k1", "k2")));
        assert_eq!(pair.matches(".entry").count(), 1);
        assert!(side_by_side(&text, &["f", "g"]).is_none());
    }

    #[test]
    fn encoders_fit_together() {
        let text = include_str!("../ptx/sm_80.ptx");
        for codecs in [&["s4", "s4"][..], &["t4", "s2"], &["i8", "t3"], &["t4", "i8", "f16", "f16"]] {
            let names: Vec<_> = codecs.iter().map(|codec| format!("encode_append_{codec}_d128")).collect();
            let pair = side_by_side(text, &names.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
            let (head, body) = pair.split_once(PAIR).unwrap().1.split_once("\n)\n").unwrap();
            assert_eq!(head.matches(".param").count(), 15 * codecs.len());
            let labels: Vec<&str> = body.lines().filter(|line| line.starts_with('$')).collect();
            let mut once = labels.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), labels.len());
        }
    }
}
