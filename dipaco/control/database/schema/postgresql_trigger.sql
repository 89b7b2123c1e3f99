-- A trigger of `tables.sql` for PostgreSQL. `contract.schema_script` fills it in.
CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
{body}  RETURN new;
END $$;
CREATE TRIGGER {name} {event} FOR EACH ROW{when} EXECUTE FUNCTION {name}();
