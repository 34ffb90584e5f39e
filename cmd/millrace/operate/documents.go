package operate

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/alecthomas/kong"
)

// Preference centers, campaigns, canvases: documents in JSON.

type documentsCommand struct {
	List   thingsList      `cmd:"" help:"List them."`
	Get    documentsGet    `cmd:"" help:"Print one, as JSON."`
	Create documentsCreate `cmd:"" help:"Create one."`
	Put    documentsPut    `cmd:"" help:"Create or replace one."`
	Edit   documentsEdit   `cmd:"" help:"Edit one in $EDITOR. Refused when somebody else changed it meanwhile."`
	Remove thingRemove     `cmd:"" help:"Remove one."`
}

type documentsCreate struct {
	inOne
	Document input `arg:"" help:"JSON; @FILE reads a file, - standard input."`
}

// Run creates a document.
func (c *documentsCreate) Run(s *session, k *kong.Context) error {
	return s.document(http.MethodPost, inWorkspace(c.Workspace, nounOf(k)), c.Document)
}

type documentsGet struct{ oneThing }

// Run prints a document.
func (c *documentsGet) Run(s *session, k *kong.Context) error {
	return s.document(http.MethodGet, c.path(k), "")
}

type documentsPut struct {
	oneThing
	Document input `arg:"" help:"JSON; @FILE reads a file, - standard input."`
}

// Run puts a document in its place.
func (c *documentsPut) Run(s *session, k *kong.Context) error {
	return s.document(http.MethodPut, c.path(k), c.Document)
}

type documentsEdit struct {
	oneThing
	Editor string `default:"vi" env:"VISUAL,EDITOR" help:"Program that edits a file."`
}

// Run lets the operator change a document in an editor. What was written stays when the server doesn't take it.
func (c *documentsEdit) Run(s *session, k *kong.Context) error {
	answer, etag, err := s.doMatching(http.MethodGet, c.path(k), nil, "")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "millrace-edit")
	if err != nil {
		return err
	}
	isRefused := false
	defer func() {
		if !isRefused {
			_ = os.RemoveAll(dir)
		}
	}()
	file := filepath.Join(dir, "document.json")
	before := append(answer.indented(), '\n')
	if err := os.WriteFile(file, before, 0o600); err != nil {
		return err
	}
	words := append(strings.Fields(c.Editor), file)
	if len(words) == 1 {
		return errors.New("--editor is empty")
	}
	editor := exec.CommandContext(s.ctx, words[0], words[1:]...)
	editor.Stdin, editor.Stdout, editor.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := editor.Run(); err != nil {
		return fmt.Errorf("%s: %w", c.Editor, err)
	}
	after, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if bytes.Equal(before, after) {
		_, err = fmt.Fprintln(s.out, "nothing has changed")
		return err
	}
	if answer, _, err = s.doMatching(http.MethodPut, c.path(k), after, etag); err != nil {
		isRefused = true
		return fmt.Errorf("%w; what was written is in %s", err, file)
	}
	return s.printDocument(answer)
}
