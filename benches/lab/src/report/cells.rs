//! The cells of all tables as one CSV file, a line per cell.

use tqkv_cli::error::CliError;

use super::Section;

/// Writes section, table, line, column and value of each cell. Lines count from 1.
pub(crate) fn write_cells(sections: &[Section]) -> Result<Vec<u8>, CliError> {
    let mut file = csv::Writer::from_writer(Vec::new());
    file.write_record(["section", "table", "line", "column", "value"]).map_err(CliError::failure)?;
    for (section, table) in
        sections.iter().flat_map(|section| section.tables.iter().map(move |table| (section, table)))
    {
        for (i, row) in table.rows.iter().enumerate() {
            let line = (i + 1).to_string();
            for (column, value) in table.head.iter().zip(row) {
                let cell = [section.title, &table.title, &line, column, value];
                file.write_record(cell).map_err(CliError::failure)?;
            }
        }
    }
    file.into_inner().map_err(CliError::failure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Table;

    #[test]
    fn every_cell_is_one_line() {
        let rows = vec![vec!["s4".into(), "1, 2".into()], vec!["t4".into(), "3".into()]];
        let section = Section {
            title: "Speed",
            tables: vec![Table::new("times", &["codec", "ns"], rows)],
            ..Section::default()
        };
        let text = String::from_utf8(write_cells(&[section]).unwrap()).unwrap();
        let expected = "section,table,line,column,value\nSpeed,times,1,codec,s4\nSpeed,times,1,ns,\"1, 2\"\n\
                        Speed,times,2,codec,t4\nSpeed,times,2,ns,3\n";
        assert_eq!(text, expected);
    }
}
